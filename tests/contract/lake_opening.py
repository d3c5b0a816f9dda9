"""Opens a lake of the contract suite, also in a program that a test kills; imports little, to start fast."""

from __future__ import annotations

import json
from pathlib import Path

from datasets.ingest.worker import Say, silent
from datasets.storage.base import Lake
from datasets.storage.bucket import Bucket, ClientConfig
from datasets.storage.bucket_config import BucketConfig
from datasets.storage.folder import FolderLake
from datasets.storage.s3 import S3Lake
from datasets.storage.sinks import LakeSink

CLIENT = ClientConfig(connect_seconds=20, answer_seconds=60, request_seconds=120)


def open_lake(spec: str) -> Lake:
    """Open the lake that a kit's `spec` describes."""
    found = json.loads(spec)
    if "bucket" not in found:
        return FolderLake(Path(found["root"]))
    return S3Lake(Bucket(BucketConfig(**found["bucket"]), CLIENT), Path(found["root"]))


def lake_sink(spec: str, *, say: Say = silent) -> LakeSink:
    """Open a sink that stores into the lake that a kit's `spec` describes."""
    return LakeSink(open_lake(spec))
