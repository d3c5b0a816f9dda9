"""A pod that gets a spare copy of its code has the same files as one whose files are written."""

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from controlplane.engines.base import CODE_MISSING, CodeSource, EngineRefused
from controlplane.engines.local.code import place_code
from controlplane.engines.local.spare_code import KEPT_MOST, SpareCode
from datasets.code_manifest import Entry, file_entry, link_entry
from datasets.code_store import FOLDER, ProjectCode
from tests.code_server import keep as keep_tree
from tests.code_trees import sha256
from tests.contract.harness import EngineCase, make_case
from tests.waiting import wait_until

PROJECT_ID = 7
FILES = {f"lib/{number}.py": b"%d" % number for number in range(30)} | {"train.py": b"import lib"}


@pytest.fixture
def store(tmp_path: Path) -> ProjectCode:
    return ProjectCode(tmp_path / FOLDER, PROJECT_ID)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path / "state")
    yield case
    case.close()


@pytest.fixture
def spare(tmp_path: Path) -> SpareCode:
    return SpareCode(tmp_path)


def keep(tmp_path: Path, files: Mapping[str, bytes] = FILES, *more: Entry) -> CodeSource:
    return CodeSource(keep_tree(tmp_path / FOLDER, PROJECT_ID, files, *more), PROJECT_ID)


def prepare(spare: SpareCode, store: ProjectCode, code: CodeSource) -> Path:
    """Prepare a copy, and return its path."""
    spare.prepare(code)
    copy = store.spare / code.tree
    wait_until(lambda: copy.exists() and not spare._writing.locked(), what="the copy")
    return copy


def placed(spare: SpareCode, code: CodeSource, target: Path) -> Path:
    target.mkdir(mode=0o700)
    spare.place(code, target)
    return target


def seen(root: Path) -> dict[str, tuple[int, str]]:
    """Return mode and content, or the target of a link, of everything below a directory."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode,
            os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_text(),
        )
        for path in (root, *root.rglob("*"))
    }


def written(tmp_path: Path, code: CodeSource) -> dict[str, tuple[int, str]]:
    target = tmp_path / f"written-{code.tree}"
    target.mkdir(mode=0o700)
    place_code(code, tmp_path, target)
    return seen(target)


def test_a_copy_becomes_the_directory(tmp_path: Path, spare: SpareCode, store: ProjectCode):
    code = keep(tmp_path)
    first = placed(spare, code, tmp_path / "first")
    inode = prepare(spare, store, code).stat().st_ino
    second = placed(spare, code, tmp_path / "second")
    assert second.stat().st_ino == inode
    assert os.listdir(store.spare) == []
    assert seen(first) == seen(second) == written(tmp_path, code)


def random_tree(draw: Random) -> tuple[dict[str, bytes], list[Entry]]:
    """Return files and links of which most are the same in every tree."""
    files, links = dict(FILES), [link_entry("start", "train.py")]
    for name in draw.sample([*FILES], draw.randrange(4)):
        files[name] = b"changed"
    for name in draw.sample([*FILES], draw.randrange(3)):
        del files[name]
    for name in draw.sample(["new.py", "deep/er/x", "deep/y", "other"], draw.randrange(4)):
        files[name] = b"new"
    if draw.random() < 0.3:
        # A directory that becomes a file, and a file that becomes a link or executable.
        files = {name: data for name, data in files.items() if not name.startswith("deep/")} | {"deep": b"f"}
    if "other" not in files and draw.random() < 0.5:
        links.append(link_entry("other", "lib/1.py"))
    if draw.random() < 0.5:
        files.pop("train.py", None)
        links.append(file_entry("train.py", 10, sha256(b"import lib"), is_executable=True))
    return files, links


@pytest.mark.parametrize("seed", range(12))
def test_the_copy_of_a_similar_tree_is_changed(
    tmp_path: Path, spare: SpareCode, store: ProjectCode, seed: int
):
    draw = Random(seed)
    keep(tmp_path)
    one, other = (keep(tmp_path, files, *links) for files, links in (random_tree(draw), random_tree(draw)))
    inode = prepare(spare, store, one).stat().st_ino
    target = placed(spare, other, tmp_path / "target")
    assert target.stat().st_ino == inode
    assert seen(target) == written(tmp_path, other)


def test_the_copy_of_another_tree_is_left(tmp_path: Path, spare: SpareCode, store: ProjectCode):
    copy = prepare(spare, store, keep(tmp_path))
    code = keep(tmp_path, {"train.py": b"import lib", "other": b"1", "another": b"2"})
    assert seen(placed(spare, code, tmp_path / "target")) == written(tmp_path, code)
    assert copy.exists()


def test_a_directory_that_has_files_keeps_them(tmp_path: Path, spare: SpareCode, store: ProjectCode):
    code = keep(tmp_path)
    copy = prepare(spare, store, code)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "made").write_text("by the attempt before")
    spare.place(code, tmp_path / "target")
    assert set(os.listdir(tmp_path / "target")) == {"lib", "train.py", "made"}
    assert copy.exists()


def test_pods_that_start_at_once_have_directories_of_their_own(
    tmp_path: Path, spare: SpareCode, store: ProjectCode
):
    one, other = keep(tmp_path), keep(tmp_path, FILES | {"train.py": b"other"})
    prepare(spare, store, one)
    with ThreadPoolExecutor(8) as threads:
        pods = [
            threads.submit(placed, spare, code, tmp_path / f"{number}-{code.tree}")
            for number in range(4)
            for code in (one, other)
        ]
    expected = {code.tree: written(tmp_path, code) for code in (one, other)}
    for pod in pods:
        assert seen(pod.result()) == expected[pod.result().name.partition("-")[2]]


def test_a_damaged_content_refuses_the_start_also_where_a_copy_is_changed(
    tmp_path: Path, spare: SpareCode, store: ProjectCode
):
    prepare(spare, store, keep(tmp_path))
    code = keep(tmp_path, FILES | {"train.py": b"changed"})
    for path in (tmp_path / FOLDER).rglob(sha256(b"changed")):
        path.chmod(0o600)
        path.write_bytes(b"CHANGED")
    with pytest.raises(EngineRefused) as refused:
        placed(spare, code, tmp_path / "target")
    assert refused.value.code == CODE_MISSING


def test_copies_are_few_and_are_removed_with_what_is_old(
    tmp_path: Path, spare: SpareCode, store: ProjectCode
):
    codes = [keep(tmp_path, {"train.py": b"%d" % number}) for number in range(KEPT_MOST + 2)]
    for number, code in enumerate(codes):
        os.utime(prepare(spare, store, code), (number, number))
    prepare(spare, store, keep(tmp_path))
    assert len(os.listdir(store.spare)) == KEPT_MOST
    store.sweep(time.time() + 1)
    assert os.listdir(store.spare) == []


def test_a_start_prepares_the_next(case: EngineCase):
    code = keep(case.state_dir)
    case.wait_end(case.start("true", code=code))
    copy = ProjectCode(case.state_dir / FOLDER, PROJECT_ID).spare / code.tree
    wait_until(copy.exists, what="the copy")
    spec = case.start("sh", "-c", "cat train.py", code=code)
    case.wait_end(spec)
    assert case.text(spec) == "import lib"
