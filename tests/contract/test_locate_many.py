"""Look-ups of many contents in a folder: the packs that hold most of them are read at once."""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import pytest

from datasets.ingest.reader import Content
from datasets.manifests import FILE, Entry, make_manifest
from datasets.storage import folder
from datasets.storage.base import ContentMissing
from datasets.storage.cache import CacheStore
from datasets.storage.folder import WHOLE_BYTES, FolderLake

SMALL = [b"content %d" % number for number in range(300)]
LARGE = [bytes([number]) * (WHOLE_BYTES + 1) for number in range(3)]


@pytest.fixture
def lake(tmp_path: Path) -> FolderLake:
    lake = FolderLake(tmp_path / "lake")
    for start in range(0, len(SMALL), 50):
        stored(lake, SMALL[start : start + 50])
    stored(lake, LARGE)
    return lake


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "_ASKED_AT_ONCE", 4)


def stored(lake: FolderLake, contents: Iterable[bytes]) -> None:
    lake.flush(lake.put_contents([Content(sha256(one).digest(), one) for one in contents]))


def digests(contents: Iterable[bytes]) -> list[bytes]:
    return [sha256(one).digest() for one in contents]


def packs(lake: FolderLake) -> list[Path]:
    return sorted(path for path in (lake.root / "packs").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "wanted",
    [SMALL + LARGE, LARGE + SMALL, SMALL[::7] + LARGE[:1], SMALL[:1], LARGE, [*SMALL[:3], *SMALL[:3]], []],
)
def test_each_content_is_located_once(lake: FolderLake, wanted: list[bytes]):
    found = [one for some in lake.locate_many(digests(wanted)) for one in some]
    assert sorted(found) == sorted(lake.locate(digests(wanted)))


def test_few_of_many_are_looked_up_without_the_indexes_of_packs(
    lake: FolderLake, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []
    places_in = folder.places_in
    monkeypatch.setattr(folder, "places_in", lambda path, pack: read.append(pack) or places_in(path, pack))
    wanted = digests(SMALL[::49])
    assert sorted(one for some in lake.locate_many(wanted) for one in some) == sorted(lake.locate(wanted))
    assert len(read) < len(packs(lake))
    read.clear()
    assert sum(map(len, lake.locate_many(digests(SMALL)))) == len(SMALL)
    assert len(read) == len(packs(lake))


def test_contents_of_packs_without_an_index_are_located(lake: FolderLake):
    first, second, *_ = packs(lake)
    first.chmod(0o644)
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    found = [one for some in lake.locate_many(digests(SMALL)) for one in some]
    assert sorted(found) == sorted(lake.locate(digests(SMALL)))


def test_what_is_not_stored_is_missing(lake: FolderLake):
    with pytest.raises(ContentMissing):
        list(lake.locate_many(digests([*SMALL, b"another"])))


def test_a_damaged_content_that_was_stored_again_is_found_elsewhere(lake: FolderLake, tmp_path: Path):
    """The index of its old pack still names it."""
    [place] = lake.locate(digests(SMALL[:1]))
    pack = lake.path_of(place)
    raw = bytearray(pack.read_bytes())
    raw[place.offset] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(raw)
    assert lake.verify(digests(SMALL)).quarantined == digests(SMALL[:1])
    entries = (Entry(b"%d" % at, FILE, len(one), sha256(one).digest()) for at, one in enumerate(SMALL))
    manifest, store = make_manifest(entries), CacheStore(tmp_path / "caches")
    with pytest.raises(ContentMissing):
        store.fill("v", lake, manifest)
    stored(lake, SMALL[:1])
    store.fill("v", lake, manifest)
    assert (store.tree("v") / "0").read_bytes() == SMALL[0]
