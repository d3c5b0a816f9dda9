"""`make demo`, second half: create a dataset with two versions and a volume in the projects of `manage.py
demo`."""

import struct
import zlib
from hashlib import sha256
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from controlplane.access import Actor
from controlplane.actions.errors import Conflict
from controlplane.models import Project, User
from datasets.actions.datasets import commit_version, create_dataset, keep_manifest, tag_version
from datasets.actions.volumes import create_volume
from datasets.ingest.packs import pack_index
from datasets.manifests import FILE, Entry, make_manifest
from datasets.models import Dataset
from datasets.queries.lake import lake_of

SIDE = 96  # pixels
FINDINGS = ("effusion", "nodule", "normal")
FIRST, ADDED = 24, 6  # pictures of the first version, and those that the second has beside them
ABOUT = "Drawn pictures in place of chest X-rays, to look at versions, files and differences."
VOLUME = {"name": "checkpoints", "size": 10 << 30}


class Command(BaseCommand):
    """Create the demo's data, except what exists."""

    help = "Create a dataset with two versions and a volume in the teams of the demo."

    def handle(self, *args: Any, **options: Any) -> None:
        made = [*self._dataset("team-c", "chi"), *self._volume("team-a", "ana")]
        self.stdout.write(f"Data: {', '.join(made) or 'is there already'}.")

    def _dataset(self, name: str, owner: str) -> list[str]:
        project, actor = _project(name), Actor(user=User.objects.get(username=owner))
        try:
            dataset = create_dataset(project, {"name": "xray", "description": ABOUT}, actor=actor)
        except Conflict:
            # Exists from an earlier run.
            return []
        add_version(dataset, _files(FIRST), "Pictures of the first scanner", actor)
        add_version(dataset, _files(FIRST + ADDED), "Six pictures more", actor)
        tag_version(dataset, "reviewed", dataset.versions.get(number=1), actor=actor)
        return [f"dataset xray of {name}"]

    def _volume(self, name: str, owner: str) -> list[str]:
        try:
            create_volume(_project(name), VOLUME, actor=Actor(user=User.objects.get(username=owner)))
        except Conflict:
            return []
        return [f"volume checkpoints of {name}"]


def _project(name: str) -> Project:
    try:
        return Project.objects.get(name=name)
    except Project.DoesNotExist as error:
        raise CommandError(f"There is no project {name}: run `manage.py demo` first.") from error


def add_version(dataset: Dataset, files: dict[str, bytes], message: str, actor: Actor) -> None:
    """Store `files` (path -> content) in the lake, and create the dataset's next version from them."""
    contents = {sha256(content).digest(): content for content in files.values()}
    index = pack_index((digest, len(content)) for digest, content in contents.items())
    lake_of(dataset.project).put_pack(memoryview(b"".join((*contents.values(), index))))
    manifest = make_manifest(
        Entry(path.encode(), FILE, len(content), sha256(content).digest()) for path, content in files.items()
    )
    keep_manifest(dataset, manifest.encode())
    commit_version(dataset, manifest.hash, dataset.latest, message, actor=actor)


def _files(pictures: int) -> dict[str, bytes]:
    """Return `pictures` generated images, in one directory per finding, and a table of them, as path ->
    content."""
    found = {f"{FINDINGS[each % 3]}/{each:03}.png": picture(each) for each in range(pictures)}
    rows = [f"{path},{path.partition('/')[0]}\n" for path in found]
    return {"labels.csv": "".join(["file,finding\n", *rows]).encode(), **found}


def picture(seed: int) -> bytes:
    """Return a grey PNG of SIDE x SIDE pixels: two bright areas on dark, and a spot whose position depends on
    the seed."""
    spot = (SIDE * (3 + seed * 7 % 13) // 18, SIDE * (3 + seed * 5 % 11) // 16)
    rows = (bytes([0, *(_grey(x, y, spot) for x in range(SIDE))]) for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _grey(x: int, y: int, spot: tuple[int, int]) -> int:
    fields = min(abs(x - SIDE * 0.3), abs(x - SIDE * 0.7)) / (SIDE * 0.22), (y - SIDE / 2) / (SIDE * 0.42)
    away = ((x - spot[0]) ** 2 + (y - spot[1]) ** 2) / 30
    return min(255, int(40 + 110 * max(0.0, 1 - fields[0] ** 2 - fields[1] ** 2) + 120 / (1 + away)))
