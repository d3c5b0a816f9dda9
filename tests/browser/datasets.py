"""Datasets for the browser tests: one with two versions, which have a picture and texts, and one without a
version."""

import struct
import urllib.request
import zlib
from hashlib import sha256

from datasets.manifests import FILE, Entry, make_manifest
from tests.browser.conftest import Yard
from tests.datasets import pack_of
from tests.waiting import patience, wait_until


def picture(width: int = 96, height: int = 64) -> bytes:
    """Return a PNG with a grey ramp."""
    rows = b"".join(b"\0" + bytes(255 * at // width for at in range(width)) for _ in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


# As long as a name may be, without a place to break it at.
LONG_SUBSET = "validation-of-the-second-annotator-" + "x" * 28
FILES = {
    "readme.txt": b"Chest X-rays, labelled by two readers.\n" * 20,
    "labels.csv": b"name,label\nscan.png,healthy\n",
    "images/scan.png": picture(),
    "weights.bin": bytes(range(256)) * 40,
}


def fill_datasets(yard: Yard) -> dict[str, str]:
    """Create the datasets, a cache that is ready, and a cache location; return the ids by name."""
    dataset = yard.call(
        "POST", "/projects/team-a/datasets", {"name": "chest-xray", "description": "Labelled scans"}
    )
    first = _sync(yard, dataset["id"], 0, FILES, "first labelling")
    _sync(
        yard, dataset["id"], 1, FILES | {"labels.csv": b"name,label\nscan.png,ill\n", "more.txt": b"more"}, ""
    )
    for tag in ("golden", "g" * 63):
        yard.call("POST", f"/datasets/{dataset['id']}/tags", {"name": tag, "version": "1"})
    for name in ("pictures", LONG_SUBSET):
        yard.call("POST", f"/versions/{first}/subsets", {"name": name, "include": ["images/"]})
    empty = yard.call("POST", "/projects/team-a/datasets", {"name": "empty", "is_shared": True})
    cache = yard.call("POST", "/caches", {"version_id": first})["id"]
    yard.call(
        "POST", "/cache-locations", {"name": "fast", "cluster": "local", "node_labels": {"disk": "nvme"}}
    )
    wait_until(lambda: yard.call("GET", f"/caches/{cache}")["state"] == "ready", 30, "the cache")
    return {"dataset": dataset["id"], "no versions": empty["id"], "cache": cache}


def _sync(yard: Yard, dataset: str, parent: int, files: dict[str, bytes], message: str) -> str:
    _send(yard, f"/datasets/{dataset}/content/packs", pack_of(*sorted(set(files.values()))))
    manifest = make_manifest(
        Entry(path.encode(), FILE, len(content), sha256(content).digest()) for path, content in files.items()
    )
    _send(yard, f"/datasets/{dataset}/content/manifests", manifest.encode())
    body = {"manifest": manifest.hash, "parent": parent, "message": message}
    version: str = yard.call("POST", f"/datasets/{dataset}/versions", body)["id"]
    return version


def _send(yard: Yard, path: str, content: bytes) -> None:
    headers = {"Authorization": f"Bearer {yard.server.token}", "Content-Type": "application/octet-stream"}
    request = urllib.request.Request(f"{yard.server.url}/api/v1{path}", content, headers, method="PUT")
    with urllib.request.urlopen(request, timeout=patience(20)) as answer:
        assert answer.status == 200
