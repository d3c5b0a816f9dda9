"""Read the current files of a volume: directories as plain data, files as downloads."""

from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BytesIO
from typing import Any, BinaryIO
from urllib.parse import quote

from django.http import HttpResponseBase, StreamingHttpResponse
from django.utils import timezone

from datasets.models import Volume, VolumeReading
from datasets.models.volume_readings import AFTER_MOST, PATH_MOST, digest_of
from datasets.models.volumes import READY
from datasets.previews import media_type
from datasets.queries.datasets import meant, shown
from datasets.queries.volumes import claims_volumes, storage_of
from datasets.storage.base import NOT_MOUNTED, Blocked, ContentMissing
from datasets.storage.trees import OWN
from datasets.storage.volume_files import Child
from datasets.storage.volumes import MountedVolumes

BYTES = "application/octet-stream"
PIECE_BYTES = 1 << 20
# Limits of a reading by a pod: entries of a directory, and bytes of a file. The data passes through the pod's
# log.
LISTED_MOST, FILE_BYTES = 1000, 4 << 20
# How long a pod's reading is shown again, and a failed one, because each further reading starts a pod.
FRESH, FAILED_FRESH = timedelta(seconds=60), timedelta(seconds=10)
# The end of the year 9999, datetime's limit: a job can set any mtime.
LATEST_SECONDS = 253_402_300_799


@dataclass(frozen=True)
class BeingRead(Exception):
    """A pod must read this file, or the names of this directory after `after`, first: request that with
    actions.volume_readings, then try again."""

    path: str
    after: str
    is_file: bool

    def __str__(self) -> str:
        return "A pod in the cluster is reading it; try again in some seconds."


def list_files(volume: Volume, directory: str, after: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Return (at most `limit` entries of a directory after the name `after`, in REST form; whether there are more).
    Raises ContentMissing if there is no such directory, Blocked if the volume cannot be read; for one that only pods
    can access also BeingRead."""
    given = directory.strip("/")
    if claims_volumes(volume.project):
        path = given.encode()
        seen = _reading(volume, given, after, is_file=False)
        found = [Child(b64decode(name), kind, size, mtime) for name, kind, size, mtime in seen.entries]
        children = [child for child in found if path or child.name != OWN]
        return [_shape(path, child) for child in children[:limit]], seen.has_more or len(children) > limit
    storage, key = _storage(volume), str(volume.pk)
    path = meant(given, lambda one: storage.is_there(key, one))
    name = meant(after, lambda one: storage.is_there(key, path + b"/" + one))
    children = storage.children(key, path, name, limit + 1)
    return [_shape(path, child) for child in children[:limit]], len(children) > limit


def _reading(volume: Volume, path: str, after: str, *, is_file: bool) -> VolumeReading:
    """Return the last reading of a file, or of a directory's names after `after`. Raises BeingRead if there is no
    recent one, ContentMissing or Blocked if it failed, Blocked if the volume is not ready."""
    _require_ready(volume)
    if len(path) > PATH_MOST or len(after) > AFTER_MOST or "\0" in path + after:
        raise ContentMissing("There is no such path in the volume.")
    rows = volume.readings.filter(digest=digest_of(path, after, is_file))
    found = rows.exclude(state=VolumeReading.PENDING).order_by("-finished_at").first()
    kept = FRESH if found is not None and found.state == VolumeReading.READY else FAILED_FRESH
    if found is None or found.finished_at is None or found.finished_at < timezone.now() - kept:
        raise BeingRead(path, after, is_file)
    if found.state == VolumeReading.READY:
        return found
    if found.reason == "content_missing":
        raise ContentMissing(found.message)
    raise Blocked(found.reason, found.message)


def file_response(volume: Volume, path: str) -> HttpResponseBase:
    """Return a streamed response with a file, for download; images without scripts are shown inline. Raises as
    `list_files`."""
    if claims_volumes(volume.project):
        content = bytes(_reading(volume, path.strip("/"), "", is_file=True).content or b"")
        file: BinaryIO = BytesIO(content)
        size = len(content)
    else:
        storage, key = _storage(volume), str(volume.pk)
        file, size = storage.open(key, meant(path, lambda one: storage.is_there(key, one)))
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
    """Yield exactly `size` bytes, padded with zeros if the file was truncated since it was opened."""
    with file:
        left = size
        while left:
            # Padded, because Content-Length is already sent.
            piece = file.read(min(PIECE_BYTES, left)) or bytes(min(PIECE_BYTES, left))
            left -= len(piece)
            yield piece


def _storage(volume: Volume) -> MountedVolumes:
    found = storage_of(volume.project_id, volume.storage_class)
    if not found.path(str(volume.pk)).is_dir():
        _require_ready(volume)
        words = f"The directory of {volume.name} is not there: is its disk mounted? An operator mounts it."
        raise Blocked(NOT_MOUNTED, words)
    return found


def _require_ready(volume: Volume) -> None:
    if volume.state != READY:
        raise Blocked("not_ready", f"Its files are shown once {volume.name} is ready; it is {volume.state}.")


def _shape(directory: bytes, child: Child) -> dict[str, Any]:
    path = directory + b"/" + child.name if directory else child.name
    return {
        "name": shown(child.name),
        "path": shown(path),
        "kind": child.kind,
        "size_bytes": child.size_bytes,
        # A job can set any mtime, including one outside the range of datetime.
        "modified_at": datetime.fromtimestamp(min(max(child.mtime, 0), LATEST_SECONDS), UTC),
    }
