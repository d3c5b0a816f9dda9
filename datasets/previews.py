"""What of a user's file may be shown in our origin: pictures that hold no script, and text as text. Pure."""

import mimetypes

PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"})
# Of a text that a page shows.
PREVIEW_BYTES = 64 << 10


def media_type(name: str) -> str | None:
    """Return the media type of a file that a browser may show in place, by its name; None for all others."""
    found = mimetypes.guess_type(name)[0]
    return found if found in PICTURES else None


def is_picture(name: str) -> bool:
    """Return whether a file is a picture that a browser may show, by its name."""
    return media_type(name) is not None


def text_of(beginning: bytes, *, is_whole: bool) -> str | None:
    """Return the beginning of a file as text; None for one that is not UTF-8 or has NUL."""
    if b"\0" in beginning:
        return None
    # a character of several bytes may be cut at the end
    for cut in range(1 if is_whole else 4):
        try:
            return beginning[: len(beginning) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None
