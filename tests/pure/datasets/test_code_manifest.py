"""What a code tree is: its canonical form, and what is refused because it would leave the tree."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.code_manifest import (
    FILES_MOST,
    Entry,
    TreeRefused,
    checked,
    dump,
    file_entry,
    link_entry,
    load,
    stays_inside,
    tree_hash,
)

HASH = "ab" * 32
ROOM = 1000


def a_file(path: str, size: int = 1) -> Entry:
    return file_entry(path, size, HASH)


def test_a_tree_has_one_hash_whatever_the_order_of_its_files() -> None:
    there = [a_file("b.py"), a_file("a/c.py"), file_entry("run", 3, HASH, is_executable=True)]
    assert tree_hash(checked(there, ROOM)) == tree_hash(checked(there[::-1], ROOM))


@pytest.mark.parametrize(
    "other",
    [
        a_file("b.py", 2),
        a_file("c.py"),
        file_entry("b.py", 1, HASH, is_executable=True),
        file_entry("b.py", 1, "cd" * 32),
    ],
)
def test_size_path_mode_and_content_are_in_the_hash(other: Entry) -> None:
    assert tree_hash([a_file("b.py")]) != tree_hash([other])


def test_a_manifest_is_read_as_it_was_written() -> None:
    entries = checked([a_file("tab\there"), a_file("line\nbreak"), a_file("é/ü 1")], ROOM)
    assert load(dump(entries)) == entries


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../up",
        "a/../../up",
        "a//b",
        "./a",
        "a/.",
        "",
        "a/",
        "nul\0",
        "x" * 256,
        "a/" * 600 + "a",
        "\ud800",
    ],
)
def test_paths_that_are_no_place_in_a_tree_are_refused(path: str) -> None:
    with pytest.raises(TreeRefused) as refused:
        checked([a_file("ok"), a_file(path)], ROOM)
    assert (refused.value.code, refused.value.index) == ("bad_path", 1)


@pytest.mark.parametrize(
    ("path", "target", "inside"),
    [
        ("a/link", "../b.py", True),
        ("link", "a/b", True),
        ("link", ".", True),
        ("link", "..", False),
        ("a/link", "../../b", False),
        ("link", "/etc/passwd", False),
        ("link", "a/../b", False),  # where `a` is a link itself, this could be anywhere
        ("link", "", False),
    ],
)
def test_links_stay_inside(path: str, target: str, inside: bool) -> None:
    assert stays_inside(path, target) is inside


_names = st.sampled_from(["a", "b", "c"])
_paths = st.lists(_names, min_size=1, max_size=3).map("/".join)
_targets = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@given(st.dictionaries(_paths, _targets, min_size=1, max_size=6))
def test_no_chain_of_accepted_links_leads_outside(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str]
) -> None:
    try:
        entries = checked([link_entry(path, target) for path, target in links.items()], 10_000)
    except TreeRefused:
        return
    root = tmp_path_factory.mktemp("tree")
    for entry in entries:
        place = root / entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(entry.target)
    for entry in entries:
        reached = Path(os.path.realpath(root / entry.path))
        assert reached == root or root in reached.parents


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ([], "tree_empty"),
        ([a_file("a"), a_file("a")], "path_twice"),
        ([a_file("a/b/c"), a_file("a/b")], "below_a_file"),
        ([link_entry("a", "b"), a_file("a/c")], "below_a_file"),
        ([a_file("a", 600), a_file("b", 600)], "tree_too_large"),
        ([a_file("a", -1)], "out_of_range"),
        ([file_entry("a", 1, HASH.upper())], "not_a_hash"),
        ([a_file(f"f{number}", 0) for number in range(FILES_MOST + 1)], "too_many_files"),
    ],
)
def test_trees_that_cannot_be_kept_are_refused(entries: list[Entry], code: str) -> None:
    with pytest.raises(TreeRefused) as refused:
        checked(entries, ROOM)
    assert refused.value.code == code
