"""The files of a volume as they are now: directories as plain data, files as downloads."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO
from urllib.parse import quote

from django.http import HttpResponseBase, StreamingHttpResponse

from datasets.models import Volume
from datasets.previews import media_type
from datasets.queries.datasets import shown
from datasets.queries.volumes import claims_volumes, storage_of
from datasets.storage.base import ContentMissing
from datasets.storage.volume_files import Child, VolumeFiles

BYTES = "application/octet-stream"
PIECE_BYTES = 1 << 20
# The end of the year 9999.
LATEST_SECONDS = 253_402_300_799


def list_files(volume: Volume, directory: str, after: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return entries of a directory as REST shows them, and whether there are more. Raises ContentMissing."""
    path = _bytes(directory).strip(b"/")
    children = _storage(volume).children(str(volume.pk), path, _bytes(after), limit + 1)
    return [_shape(path, child) for child in children[:limit]], len(children) > limit


def file_response(volume: Volume, path: str) -> HttpResponseBase:
    """Return a file as a download; pictures without script are shown in place. Raises ContentMissing."""
    file, size = _storage(volume).open(str(volume.pk), _bytes(path))
    name = path.rpartition("/")[2]
    media = media_type(name)
    kind, way = (media, "inline") if media else (BYTES, "attachment")
    headers = {
        "Content-Disposition": f"{way}; filename*=UTF-8''{quote(name, safe='')}",
        "Content-Length": str(size),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-store",
    }
    return StreamingHttpResponse(_pieces(file, size), content_type=kind, headers=headers)


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield exactly `size` bytes, zeros in the place of what was cut off since: the length is said already."""
    with file:
        left = size
        while left:
            piece = file.read(min(PIECE_BYTES, left)) or bytes(min(PIECE_BYTES, left))
            left -= len(piece)
            yield piece


def _storage(volume: Volume) -> VolumeFiles:
    if claims_volumes(volume.project):
        raise ContentMissing("Only pods see the files of this volume. Look at them in a job that mounts it.")
    return storage_of(volume.project_id, volume.storage_class)


def _bytes(path: str) -> bytes:
    """Read a path as it is shown: bytes that are not UTF-8 as they come from the file system's names."""
    return path.encode("utf-8", "surrogateescape")


def _shape(directory: bytes, child: Child) -> dict[str, Any]:
    path = directory + b"/" + child.name if directory else child.name
    return {
        "name": shown(child.name),
        "path": shown(path),
        "kind": child.kind,
        "size_bytes": child.size_bytes,
        # A job can set any time, also one that no date has.
        "modified_at": datetime.fromtimestamp(min(max(child.mtime, 0), LATEST_SECONDS), UTC),
    }
