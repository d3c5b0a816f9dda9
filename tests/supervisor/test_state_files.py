"""Nobody but the owner of an instance reads what it keeps: sessions, tokens, jobs' secrets and logs."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.config.environment import SettingInvalid
from controlplane.config.state_files import close_below, close_database, make_private
from tests.servers import CHECKOUT


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    former = os.umask(0o022)
    yield
    os.umask(former)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_new_directory_and_what_is_written_into_it_are_the_owners(tmp_path: Path) -> None:
    state_dir = tmp_path / "a" / "state"
    make_private(state_dir)
    (state_dir / "logs" / "job").mkdir(parents=True)
    (state_dir / "db.sqlite3").touch()
    assert [mode(path) for path in (state_dir, state_dir / "logs", state_dir / "logs" / "job")] == [0o700] * 3
    assert mode(state_dir / "db.sqlite3") == 0o600


def test_an_open_directory_is_closed_with_all_that_is_in_it(tmp_path: Path) -> None:
    for name in (
        "db.sqlite3",
        "db.sqlite3-wal",
        "db.sqlite3-shm",
        "control/web.log",
        "logs/job/1-0.log",
        "redis/conf",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o644)
    (tmp_path / "start.sh").touch(0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "redis" / "sock"))
        make_private(tmp_path)
        close_below(tmp_path)
        found = {str(path.relative_to(tmp_path)): mode(path) for path in tmp_path.rglob("*")}
    assert mode(tmp_path) == 0o700
    assert {name: bits for name, bits in found.items() if bits & 0o077} == {}
    assert found["start.sh"] == 0o700  # the owner's own rights stay
    assert found["db.sqlite3"] == 0o600


def test_links_are_not_followed_and_jobs_keep_the_modes_they_chose(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(0o755)
    (outside / "file").touch(0o644)
    state_dir = tmp_path / "state"
    rank = state_dir / "work" / "job" / "0"
    rank.mkdir(parents=True)
    (rank / "tool").touch(0o755)
    (rank / "tool").chmod(0o755)
    (state_dir / "lib").mkdir()
    (state_dir / "lib" / "workloads").symlink_to(outside)
    close_below(state_dir)
    assert [mode(path) for path in (rank.parent.parent, rank.parent, rank)] == [0o700] * 3
    assert (mode(rank / "tool"), mode(outside), mode(outside / "file")) == (0o755, 0o755, 0o644)


def test_what_runs_as_other_users_keeps_its_modes_behind_a_closed_directory(tmp_path: Path) -> None:
    """The cluster of `make kube`, whose images are unpacked there, and the files of volumes."""
    for name in ("kube", "volumes"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name).chmod(0o755)
        (tmp_path / name / "deep" / "program").touch(0o755)
        (tmp_path / name / "deep" / "program").chmod(0o755)
    close_below(tmp_path)
    for name in ("kube", "volumes"):
        assert (mode(tmp_path / name), mode(tmp_path / name / "deep" / "program")) == (0o700, 0o755)


def test_a_database_elsewhere_is_closed_with_its_journal(tmp_path: Path) -> None:
    for suffix in ("", "-wal"):
        (tmp_path / f"yard.sqlite3{suffix}").touch(0o644)
    close_database(str(tmp_path / "yard.sqlite3"))
    assert [mode(path) for path in sorted(tmp_path.iterdir())] == [0o600, 0o600]


def test_a_directory_that_users_share_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(SettingInvalid, match="name a directory of its own"):
        make_private(tmp_path)
    assert mode(tmp_path) == 0o1777


def test_every_process_that_has_the_settings_has_the_umask(tmp_path: Path) -> None:
    script = "import os, controlplane.settings; print(oct(os.umask(0)))"
    environment = {**os.environ, "TRAINYARD_STATE_DIR": str(tmp_path / "state")}
    said = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "0o77"
