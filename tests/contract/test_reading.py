"""Files are read while others are looked for."""

import os
from pathlib import Path

import pytest

from datasets.ingest.reading import ALONE_FILES, BATCH_FILES, Progress, Reading
from datasets.ingest.tree import Directory, walk
from datasets.storage.folder_sink import sink_of_folder
from tests.servers import wait_until


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    root.mkdir()
    for number in range(BATCH_FILES):
        (root / f"{number}").write_bytes(b"%d" % number)
    return root


def test_worker_processes_read_before_all_is_found(tree: Path, tmp_path: Path):
    [directory] = walk(os.fsencode(tree)).directories
    done: list[Progress] = []
    sink = sink_of_folder(tmp_path / "lake")

    def report(progress: Progress) -> bool:
        done.append(progress)
        return True

    with Reading(os.fsencode(tree), sink, lambda: None, 1, report, print) as reading:
        reading.add(directory, range(BATCH_FILES))

        def is_read() -> bool:
            reading.add(Directory(b"", []), [])
            return bool(done)

        wait_until(is_read, what="the first files")
        assert done == [Progress(BATCH_FILES, BATCH_FILES, reading.size_bytes, reading.size_bytes)]
        reading.complete()
        reading.flush()
    assert bytes(directory.digests).count(bytes(32)) == 0


def test_few_files_start_no_process(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    [directory] = walk(os.fsencode(tree)).directories
    monkeypatch.setattr("datasets.ingest.reading.Worker", lambda *_: pytest.fail("a process was started"))
    sink = sink_of_folder(tmp_path / "lake")
    with Reading(os.fsencode(tree), sink, lambda: None, 1, lambda _: True, print) as reading:
        reading.add(directory, range(ALONE_FILES))
        reading.complete()
        reading.flush()
    assert len(directory.digests) == 32 * BATCH_FILES
    assert directory.digests[: 32 * ALONE_FILES].count(bytes(32)) == 0
