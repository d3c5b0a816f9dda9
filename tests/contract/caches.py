"""Versions for the tests of caches, and what their trees hold."""

import os
import stat
from hashlib import sha256

from datasets.manifests import EXECUTABLE, FILE, LINK, Entry, Manifest, make_manifest
from datasets.storage.base import Lake
from datasets.storage.cache import CacheStore
from datasets.storage.folder import WHOLE_BYTES
from tests.datasets import pack_of

LARGE = os.urandom(WHOLE_BYTES + 1)
FILES = {
    "large": (FILE, LARGE),
    "run.sh": (EXECUTABLE, b"#!/bin/sh"),
    "sub/a": (FILE, b"alpha"),
    "sub/again": (FILE, b"alpha"),
    "empty": (FILE, b""),
    "link": (LINK, b"sub/a"),
}


def kept(lake: Lake, files: dict[str, tuple[int, bytes]]) -> Manifest:
    """The manifest of files whose contents are in the lake."""
    small = {content for _, content in files.values() if len(content) <= WHOLE_BYTES}
    lake.put_pack(memoryview(pack_of(*sorted(small))))
    for content in {content for _, content in files.values()} - small:
        lake.put_part(sha256(content).digest(), 0, memoryview(content), len(content))
    return make_manifest(
        Entry(path.encode(), kind, len(content), sha256(content).digest())
        for path, (kind, content) in files.items()
    )


def many(lake: Lake, count: int = 400) -> Manifest:
    contents = [f"content {number}".encode() for number in range(count)]
    for start in range(0, count, 50):
        lake.put_pack(memoryview(pack_of(*contents[start : start + 50])))
    return make_manifest(
        Entry(f"{number:04}".encode(), FILE, len(content), sha256(content).digest())
        for number, content in enumerate(contents)
    )


def inodes(store: CacheStore, key: str) -> set[int]:
    """The inode numbers of a tree's files."""
    files = (path.stat(follow_symlinks=False) for path in store.tree(key).rglob("*"))
    return {status.st_ino for status in files if stat.S_ISREG(status.st_mode)}
