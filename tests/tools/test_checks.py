"""Checks of `make test`: side by side, each shown whole, and what fails is told in the last line."""

import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests import servers
from tests.waiting import wait_until
from tools.checks import INTERRUPTED, ROOT, Check, Ended, _own_network, run, summary, tally_of


def saying(name: str, script: str, **flags: bool) -> Check:
    return Check(name, ["-c", script], **flags)


def meeting(mine: Path, theirs: Path) -> str:
    """Ends well if the other one runs at the same time."""
    return f"""
import pathlib, sys, time
pathlib.Path({str(mine)!r}).touch()
for _ in range(200):
    if pathlib.Path({str(theirs)!r}).exists():
        sys.exit(0)
    time.sleep(0.05)
sys.exit("nobody came")
"""


def test_checks_run_side_by_side_and_each_is_shown_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    a, b = tmp_path / "a", tmp_path / "b"
    checks = [
        saying("first", f"print('one')\n{meeting(a, b)}"),
        saying("second", f"print('two')\n{meeting(b, a)}"),
    ]
    assert run(checks, at_once=2) == 0
    said = capfd.readouterr().out
    for name, word in (("first", "one"), ("second", "two")):
        assert f"== {name}\n{word}\n{name}: passed in" in said


def test_a_failing_check_fails_all_and_is_named_last(capfd: pytest.CaptureFixture[str]):
    bad = "print('E  assert 1 == 2')\nprint('1 failed, 3 passed in 0.10s')\nraise SystemExit(1)"
    good = "print('4 passed, 1 skipped in 2.00s')"
    assert run([saying("bad", bad), saying("good", good)], at_once=2) == 1
    said = capfd.readouterr().out
    assert "E  assert 1 == 2" in said
    last = said.splitlines()[-1]
    assert last.startswith("1 failed, 7 passed, 1 skipped in ")
    assert last.endswith("; failed: bad")


def test_a_check_begins_after_the_one_it_names(tmp_path: Path):
    names = {"x": "z", "y": "", "z": "y"}
    log = tmp_path / "log"
    checks = [replace(saying(name, around(log, name)), after=after) for name, after in names.items()]
    assert run(checks, at_once=3) == 0
    assert log.read_text() == "yYzZxX"


def test_no_more_run_at_once_than_may_and_the_first_begin_first(tmp_path: Path):
    checks = [saying(name, around(tmp_path / "log", name)) for name in "xyz"]
    assert run(checks, at_once=1) == 0
    assert (tmp_path / "log").read_text() == "xXyYzZ"


@pytest.mark.skipif(not _own_network(), reason="we may make no network of our own")
def test_what_needs_a_still_network_sees_no_interface_but_loopback():
    script = """
import socket
socket.create_server(("127.0.0.1", 0)).close()
assert [name for _, name in socket.if_nameindex()] == ["lo"]
"""
    assert run([saying("still", script, needs_still_network=True)], at_once=1) == 0


def around(log: Path, letter: str) -> str:
    """Note a small letter, and the same large one a moment later."""
    note = "with open({!r}, 'a') as log:\n    log.write({!r})\n".format
    return f"import time\n{note(str(log), letter)}time.sleep(0.3)\n{note(str(log), letter.upper())}"


def test_an_interrupt_ends_all_and_lets_them_clean_up(tmp_path: Path):
    put_away = f"open({str(tmp_path / 'away')!r}, 'w')"
    long = f"import time\nopen({str(tmp_path / 'up')!r}, 'w')\ntry:\n    time.sleep(600)\nfinally:\n    {put_away}"
    script = f"from tools.checks import *\nprint(run([Check('long', ['-c', {long!r}])], at_once=2))"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "-- long\n"
        child = wait_until(lambda: servers.descendants(process.pid), what="the check's process")[0]
        wait_until((tmp_path / "up").exists, what="the check's first line")
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
    assert said.endswith(f"interrupted\n{INTERRUPTED}\n")
    assert (tmp_path / "away").exists()
    assert not child.is_running()


def test_a_check_sees_nothing_of_this_shells_instance(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINYARD_PORT", "1")
    monkeypatch.setenv("DATABASE_URL", "postgres://of-somebody")
    script = (
        "import os\nassert 'TRAINYARD_PORT' not in os.environ\nassert os.environ.get('DATABASE_URL') == 'x'"
    )
    assert run([Check("clean", ["-c", script], {"DATABASE_URL": "x"})], at_once=2) == 0


@pytest.mark.parametrize(
    ("text", "tally"),
    [
        ("....\n5 passed in 1.0s\n", {"passed": 5}),
        ("1 failed, 2 passed, 3 errors in 1.0s", {"failed": 1, "passed": 2, "error": 3}),
        (
            "5 passed, 1 skipped in 1.0s (0:00:01)\n--- Logging error ---\nOSError\n",
            {"passed": 5, "skipped": 1},
        ),
        ("7 passed\nAll checks passed!\n", {}),
        ("", {}),
    ],
)
def test_the_last_line_that_pytest_ends_with_counts(text: str, tally: dict[str, int]):
    assert tally_of(text) == Counter(tally)


def test_the_summary_is_one_line_as_pytests():
    ended = [Ended("a", 0, 1, 1, Counter(passed=2)), Ended("b", 1, 2, 1, Counter(passed=1, failed=3))]
    assert summary(ended, 754.25) == "3 failed, 3 passed in 754.25s (0:12:34); failed: b"
