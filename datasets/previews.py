"""Decide which user files pages may show in our origin: images without scripts, and the start of plain text. Pure."""

import mimetypes

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"})
# Limit on the text that a page shows.
PREVIEW_BYTES = 64 << 10


def media_type(name: str) -> str | None:
    """Return the media type by which browsers may show a file with this name inline; None if it must be
    downloaded."""
    found = mimetypes.guess_type(name)[0]
    return found if found in PICTURES else None


def is_picture(name: str) -> bool:
    """Return whether a file with this name is an image that may be shown inline."""
    return media_type(name) is not None


def text_of(beginning: bytes, *, is_whole: bool) -> str | None:
    """Return the beginning of a file as text; None if it is not UTF-8 or contains NUL. `is_whole`: False if the last
    character may be cut off."""
    if b"\0" in beginning:
        return None
    # The last character may be cut in the middle of its bytes.
    for cut in range(1 if is_whole else 4):
        try:
            return beginning[: len(beginning) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None
