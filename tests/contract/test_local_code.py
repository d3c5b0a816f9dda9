"""A job's code in the working directories of its pods on the local engine: every file, at every attempt, and nothing
written outside of it."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from controlplane.engines.base import CODE_MISSING, CODE_NOT_PLACED, CodeSource, EngineRefused
from datasets.code_manifest import Entry, file_entry, link_entry
from datasets.code_store import FOLDER, ProjectCode
from tests.code_server import keep as keep_tree
from tests.code_trees import sha256
from tests.contract.harness import EngineCase, make_case

PROJECT_ID = 7
FILES = {
    "train.py": b"import lib.util\nprint(lib.util.LR)\n",
    "lib/util.py": b"LR = 0.1\n",
    "lib/__init__.py": b"",
}


@pytest.fixture
def case(tmp_path: Path) -> Iterator[EngineCase]:
    case = make_case("local", tmp_path / "state")
    yield case
    case.close()


def keep(case: EngineCase, files: Mapping[str, bytes] = FILES, *more: Entry) -> CodeSource:
    """Put a tree into the code store."""
    return CodeSource(keep_tree(case.state_dir / FOLDER, PROJECT_ID, files, *more), PROJECT_ID)


def run(case: EngineCase, command: str, code: CodeSource, **fields: object) -> str:
    spec = case.start("sh", "-c", command, code=code, **fields)
    case.wait_end(spec)
    return case.text(spec)


def test_code_is_the_working_directory_of_every_pod(case: EngineCase):
    code = keep(case)
    for rank in range(2):
        assert run(case, "python train.py", code, rank=rank) == "0.1\n"


def test_modes_and_links_are_those_of_the_tree(case: EngineCase):
    script = b"#!/bin/sh\necho ran\n"
    run_entry = file_entry("run", len(script), sha256(script), is_executable=True)
    ProjectCode(case.state_dir / FOLDER, PROJECT_ID).put(sha256(script), [script])
    code = keep(case, FILES, run_entry, link_entry("lib/start", "../run"))
    assert run(case, "./run; lib/start; test -x train.py || echo plain", code) == "ran\nran\nplain\n"


def test_the_next_attempt_has_the_code_as_it_was_and_what_the_job_made(case: EngineCase):
    code = keep(case)
    first = case.start("sh", "-c", "echo 'LR = 2' > lib/util.py; rm train.py; echo 7 > step", code=code)
    case.wait_end(first)
    again = run(case, "cat step; python train.py", code, job_id=first.job_id, attempt=2)
    assert again == "7\n0.1\n"


def test_what_a_pod_does_to_its_files_stays_its_own(case: EngineCase):
    code = keep(case)
    assert run(case, "chmod -R u+w .; echo 'LR = 2' > lib/util.py; python train.py", code) == "2\n"
    assert run(case, "python train.py", code) == "0.1\n"


def test_code_is_never_written_through_a_link_that_the_job_left(case: EngineCase, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "util.py").write_text("mine")
    code = keep(case)
    left = f"rm -r lib train.py; ln -s {elsewhere} lib; ln -s {elsewhere}/util.py train.py"
    first = case.start("sh", "-c", left, code=code)
    case.wait_end(first)
    with pytest.raises(EngineRefused) as refused:
        case.start("true", code=code, job_id=first.job_id, attempt=2)
    assert refused.value.code == CODE_NOT_PLACED
    assert (os.listdir(elsewhere), (elsewhere / "util.py").read_text()) == (["util.py"], "mine")


def test_code_that_is_gone_or_damaged_refuses_the_start(case: EngineCase):
    code = keep(case)
    for path in (case.state_dir / FOLDER).rglob(sha256(FILES["train.py"])):
        path.chmod(0o600)
        path.write_bytes(b"#" * len(FILES["train.py"]))
    for _ in range(2):  # the second finds no tree: the next submission uploads what is damaged
        with pytest.raises(EngineRefused) as refused:
            case.start("true", code=code)
        assert refused.value.code == CODE_MISSING
    shutil.rmtree(case.state_dir / FOLDER)
    with pytest.raises(EngineRefused) as refused:
        case.start("true", code=code)
    assert refused.value.code == CODE_MISSING
