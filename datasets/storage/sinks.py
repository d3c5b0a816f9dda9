"""Sinks that store into a lake of any kind; worker processes open them (see datasets.ingest.worker)."""

import os
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

from datasets.ingest.packs import CONTENT_MOST_BYTES, make_pack
from datasets.ingest.reader import Content, FileChanged
from datasets.ingest.worker import Say, SinkSpec, silent
from datasets.storage.base import ContentDamaged, Lake
from datasets.storage.bucket_config import BucketConfig
from datasets.storage.folder_sink import sink_of_folder

# Bytes read at once from a large file, so that it takes little memory.
PART_BYTES = 16 << 20


class LakeSink:
    """Stores contents in a lake of any kind, as packs and file parts; implements datasets.ingest.reader.Sink.
    Contents are durable when a call returns."""

    most_in_memory_bytes = CONTENT_MOST_BYTES

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        return self._lake.keep(digests)

    def put_contents(self, contents: Sequence[Content]) -> None:
        pack = make_pack([(content.digest, content.data) for content in contents])
        self._lake.put_pack(memoryview(pack))

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        # If all bytes arrived but the content was not completed, sending one part again completes it.
        arrived = min(self._lake.part_bytes(digest), size_bytes - 1)
        with open(path, "rb", buffering=0) as file:
            while arrived < size_bytes:
                part = os.pread(file.fileno(), PART_BYTES, arrived)
                if not part:
                    raise FileChanged
                try:
                    arrived = self._lake.put_part(digest, arrived, memoryview(part), size_bytes)
                except ContentDamaged as error:
                    raise FileChanged from error

    def flush(self) -> None:
        """Do nothing: every call returned after the content was stored."""


def bucket_sink(
    root: str, config: tuple[str, ...], packages: tuple[str, ...], *, say: Say = silent
) -> LakeSink:
    """Open the sink that `sink_of_bucket` describes. Called in the worker process, which has only the standard
    library and `packages` (directories). `say` is not used: the command that opened the sink is retried, and
    records why."""
    sys.path += [path for path in packages if path not in sys.path]
    from datasets.storage.bucket import Bucket
    from datasets.storage.s3 import S3Lake

    return LakeSink(S3Lake(Bucket(BucketConfig(*config)), Path(root)))


def sink_of_bucket(root: Path, config: BucketConfig) -> SinkSpec:
    """Return the description of a sink into the lake in a bucket, with its index in `root`; worker processes open
    it with `bucket_sink`. Contains credentials, and is passed through a pipe."""
    packages = tuple(path for path in sys.path if path.endswith("-packages"))
    return f"{__name__}:bucket_sink", (str(root), astuple(config), packages)


def sink_of(root: Path, config: BucketConfig | None) -> SinkSpec:
    """Return the description of a sink into a lake: in the folder `root`, or in the bucket `config` with its
    index in `root`."""
    return sink_of_folder(root) if config is None else sink_of_bucket(root, config)
