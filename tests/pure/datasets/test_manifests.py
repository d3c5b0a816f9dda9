"""Manifests: what they hold, what they refuse, and that a comparison agrees with the obvious one."""

from array import array
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets import manifests
from datasets.manifests import (
    EXECUTABLE,
    FILE,
    Child,
    Entry,
    Manifest,
    ManifestInvalid,
    checked,
    compare,
    decode,
    make_manifest,
    new_contents,
)


def manifest(**files: str) -> Manifest:
    """A manifest of paths (`__` for a slash) and contents."""
    return make_manifest(
        Entry(path.replace("__", "/").encode(), FILE, len(text), sha256(text.encode()).digest())
        for path, text in files.items()
    )


def test_sizes_that_no_database_can_add_up_are_refused():
    most = Entry(b"a", FILE, manifests.SIZE_MOST_BYTES, bytes(32))
    assert len(make_manifest([most])) == 1
    with pytest.raises(ManifestInvalid, match="larger"):
        make_manifest([most, Entry(b"b", FILE, 1, bytes(32))])


NAMES = st.binary(min_size=1, max_size=3).filter(
    lambda name: not {0, 0x2F} & set(name) and name not in (b".", b"..")
)
TREES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(b"/".join),
    st.tuples(st.sampled_from([FILE, EXECUTABLE]), st.sampled_from([b"a", b"b"])),
    max_size=12,
).filter(lambda tree: not any(other.startswith(path + b"/") for path in tree for other in tree))


def of(tree: dict[bytes, tuple[int, bytes]]) -> Manifest:
    return make_manifest(
        Entry(path, kind, len(text), sha256(text).digest()) for path, (kind, text) in tree.items()
    )


@given(TREES)
def test_what_is_stored_is_what_is_read(tree):
    made = of(tree)
    read = checked(decode(made.encode()))
    assert list(read.entries()) == list(made.entries())
    assert read.hash == made.hash
    assert [entry.path for entry in read.entries()] == sorted(tree)


@given(TREES, TREES)
def test_a_comparison_agrees_with_the_obvious_one(old, new):
    diff = compare(of(old), of(new))
    assert list(diff.added) == sorted(new.keys() - old.keys())
    assert list(diff.removed) == sorted(old.keys() - new.keys())
    assert list(diff.changed) == sorted(path for path in new.keys() & old.keys() if new[path] != old[path])


@given(TREES, TREES)
def test_a_patched_manifest_is_the_one_made_from_scratch(old, new):
    before, after = of(old), of(new)
    diff = compare(before, after)
    changed = of({path: new[path] for path in (*diff.added, *diff.changed)})
    patched = before.patched(diff.removed, changed)
    assert list(patched.entries()) == list(after.entries())
    assert patched.hash == after.hash
    assert checked(decode(patched.encode(0))).hash == after.hash


@given(TREES, TREES, st.lists(NAMES))
def test_a_patch_that_makes_a_file_a_directory_too_is_refused(old, new, removed):
    merged = {path: one for path, one in (old | new).items() if path in new or path not in removed}
    if any(other.startswith(path + b"/") for path in merged for other in merged):
        with pytest.raises(ManifestInvalid):
            of(old).patched(removed, of(new))
    else:
        assert of(old).patched(removed, of(new)).hash == of(merged).hash


@pytest.mark.parametrize("few", [0, 1000])
@given(old=TREES, new=TREES)
def test_no_new_content_is_left_out(old, new, few):
    before, after = of(old), of(new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifests, "_FEW", few)
        found = new_contents(before, after, compare(before, after))
    assert set(after.contents()) - set(before.contents()) <= found <= set(after.contents())


@given(TREES, st.integers(1, 4))
def test_pages_of_a_directory_are_all_of_it(tree, limit):
    made = of(tree)
    found: list[Child] = []
    while page := made.children(after=found[-1].name if found else b"", limit=limit):
        found += page
    assert sorted(child.name for child in found) == sorted({path.split(b"/")[0] for path in tree})
    assert sum(child.files for child in found) == len(tree)
    assert sum(child.size_bytes for child in found) == made.size_bytes


def test_equal_trees_have_one_hash_and_a_changed_bit_has_another():
    assert manifest(a="1", b__c="2").hash == manifest(b__c="2", a="1").hash
    executable = make_manifest([Entry(b"a", EXECUTABLE, 1, sha256(b"1").digest())])
    assert executable.hash != manifest(a="1").hash


@pytest.mark.parametrize(
    "path",
    [
        b"/etc/passwd", b"../up", b"a/../../b", b"a//b", b"a/./b", b".", b"..", b"", b"a/", b"a/..",
        b"n" * 256, b"/".join([b"d" * 200] * 30),
    ],
)  # fmt: skip
def test_a_path_that_no_tree_may_have_is_refused(path):
    with pytest.raises(ManifestInvalid):
        make_manifest([Entry(path, FILE, 0, bytes(32))])


@pytest.mark.parametrize("paths", [[b"a", b"a/b"], [b"a/b", b"a/b/c/d"], [b"b", b"a"], [b"a", b"a"]])
def test_paths_that_cannot_be_together_are_refused(paths):
    columns = Manifest(paths, bytes(len(paths)), array("Q", [0] * len(paths)), bytes(32 * len(paths)))
    with pytest.raises(ManifestInvalid):
        checked(columns)


def test_a_cut_off_or_inflated_manifest_is_refused():
    stored = manifest(a="1", b="2").encode()
    for broken in (b"", stored[:-1], stored[:30], stored + b"x", b"PK" + stored[2:]):
        with pytest.raises(ManifestInvalid):
            decode(broken)


def test_a_small_manifest_of_huge_paths_is_refused_before_it_is_inflated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifests, "PATHS_MOST_BYTES", 100)
    stored = manifest(**{"a" * 60: "1", "b" * 60: "2"}).encode()
    monkeypatch.setattr(manifests, "_inflated", lambda *_: pytest.fail("it was inflated"))
    with pytest.raises(ManifestInvalid, match="paths"):
        decode(stored)


def test_a_file_of_the_tree_is_found_by_its_path():
    made = manifest(a="1", b__c="22")
    entry = made.find(b"b/c")
    assert entry is not None
    assert entry.size_bytes == 2
    assert made.find(b"b") is None
    assert made.find(b"zz") is None
