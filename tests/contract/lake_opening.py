"""Opening a lake of the contract suite, also in a program that a test kills: little is imported here."""

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
    """Open the lake of a kit."""
    found = json.loads(spec)
    if "bucket" not in found:
        return FolderLake(Path(found["root"]))
    return S3Lake(Bucket(BucketConfig(**found["bucket"]), CLIENT), Path(found["root"]))


def lake_sink(spec: str, *, say: Say = silent) -> LakeSink:
    """Open the sink of a kit's lake."""
    return LakeSink(open_lake(spec))
