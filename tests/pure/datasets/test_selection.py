"""Which files of a version a subset has."""

import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.manifests import FILE, Entry, Manifest, checked, make_manifest
from datasets.selection import PathsUnknown, Selection, misplaced, select

FILES = ("a.txt", "b/a.txt", "b/c/a.txt", "b/c/d.png", "train/1.png", "train/x/2.png", "x*y", "é.txt")


def _manifest(*paths: str) -> Manifest:
    return make_manifest(
        Entry(path.encode(), FILE, 1, bytes([place]) * 32) for place, path in enumerate(paths)
    )


def _chosen(include: str, *paths: str) -> set[str]:
    found = select(_manifest(*(paths or FILES)), Selection([include.encode()]))
    return {path.decode() for path in found.paths}


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("*.txt", {"a.txt", "b/a.txt", "b/c/a.txt", "é.txt"}),
        ("/*.txt", {"a.txt", "é.txt"}),
        ("b/*", {"b/a.txt"}),
        ("b/**", {"b/a.txt", "b/c/a.txt", "b/c/d.png"}),
        ("b/", {"b/a.txt", "b/c/a.txt", "b/c/d.png"}),
        ("b/**/a.txt", {"b/a.txt", "b/c/a.txt"}),
        ("**/c/**", {"b/c/a.txt", "b/c/d.png"}),
        ("train/**/*.png", {"train/1.png", "train/x/2.png"}),
        ("**", set(FILES)),
        ("[ab].txt", {"a.txt", "b/a.txt", "b/c/a.txt"}),
        ("[!a].png", {"b/c/d.png", "train/1.png", "train/x/2.png"}),
        ("x[*]y", {"x*y"}),
        ("[", set()),
        ("[z-a]", set()),
        ("?.txt", {"a.txt", "b/a.txt", "b/c/a.txt", "é.txt"}),
        ("?.png", {"b/c/d.png", "train/1.png", "train/x/2.png"}),
    ],
)
def test_patterns(pattern: str, chosen: set[str]) -> None:
    assert _chosen(pattern) == chosen


def test_excluded_files_are_left_out_also_where_they_are_listed() -> None:
    selection = Selection([b"*.txt"], [b"b/c/"], [b"b/c/d.png", b"train/1.png"])
    found = select(_manifest(*FILES), selection)
    assert found.paths == sorted([b"a.txt", b"b/a.txt", b"train/1.png", "é.txt".encode()])
    assert checked(found).hash == make_manifest(found.entries()).hash


def test_patterns_that_mean_a_deeper_directory_are_known() -> None:
    patterns = [b"c/", b"c/*.txt", b"/c/", b"**/c/", b"b/c/", b"x/", b"none/", b"*.gif", b"train/"]
    assert misplaced(_manifest(*FILES), patterns) == [b"c/", b"c/*.txt", b"x/"]


def test_a_listed_path_must_be_there() -> None:
    with pytest.raises(PathsUnknown) as caught:
        select(_manifest(*FILES), Selection(paths=[b"z", b"a.txt", b"no"]))
    assert caught.value.paths == [b"no", b"z"]


_NAMES = st.text("ab", max_size=8).filter(bool)


@given(st.text("ab*?", max_size=10).filter(bool), st.lists(_NAMES, min_size=1, max_size=6, unique=True))
def test_a_name_matches_as_fnmatch_does(pattern: str, names: list[str]) -> None:
    assert _chosen(pattern, *names) == {name for name in names if fnmatchcase(name, pattern)}


def _fits(parts: list[str], names: list[str]) -> bool:
    """The definition of `**`, tried in every way."""
    if not parts:
        return not names
    if parts[0] == "**":
        if len(parts) == 1:
            return bool(names)
        return any(_fits(parts[1:], names[start:]) for start in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], parts[0]) and _fits(parts[1:], names[1:])


@given(
    st.lists(st.sampled_from(["**", "a", "b", "*", "a*"]), min_size=2, max_size=6),
    st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=6),
)
def test_directories_match_by_the_definition(parts: list[str], names: list[str]) -> None:
    path = "/".join(names)
    assert bool(_chosen("/".join(parts), path)) == _fits(parts, names)


def test_no_pattern_takes_long() -> None:
    began = time.process_time()
    deep = "/".join(["a"] * 500) + "/c"
    long = "a" * 255
    for pattern in ("**/a/" * 100 + "b", "*a" * 120 + "b", "**/*a*a*/" * 50 + "b"):
        assert _chosen(pattern, deep, long) == set()
    assert time.process_time() - began < 2
