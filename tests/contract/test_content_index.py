"""The content index answers the same whether it looks contents up or reads all rows."""

from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import pytest

from datasets.storage import contents
from datasets.storage.contents import WHOLE, ContentIndex, Files, Located

DIGESTS = [sha256(b"%d" % number).digest() for number in range(40)]
ABSENT = sha256(b"absent").digest()
STORED = [
    Located(("late", "early", WHOLE)[number % 3], 0 if number % 3 == 2 else 1000 - number, 7, digest)
    for number, digest in enumerate(DIGESTS)
]
# Every other content, and one that is not there.
WANTED = [*DIGESTS[::2], ABSENT]


@pytest.fixture(params=["looks up", "reads all"])
def index(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ContentIndex]:
    monkeypatch.setattr(contents, "_MANY", 1 if request.param == "reads all" else 1000)
    made = ContentIndex(tmp_path / "index.sqlite")
    made.add(STORED)
    yield made
    made.close()


def test_known_contents(index: ContentIndex):
    assert index.known(WANTED) == set(DIGESTS[::2])


def test_locations_are_together_by_pack_and_in_its_order(index: ContentIndex):
    located = index.locate(WANTED)
    assert sorted(located) == sorted(STORED[::2])
    packs = [one.pack for one in located]
    assert len([1 for one, other in pairwise(packs) if one != other]) == 2
    for pack in set(packs):
        offsets = [one.offset for one in located if one.pack == pack]
        assert offsets == sorted(offsets)


def test_files_of_contents(index: ContentIndex):
    found = index.files_of(WANTED)
    assert found._replace(alone=sorted(found.alone)) == Files(
        set(DIGESTS[::2]), {"late", "early"}, sorted(DIGESTS[2::6])
    )
