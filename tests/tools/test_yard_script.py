"""The script `yard`, as `make install` writes it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cli import __main__ as cli
from controlplane.cli.errors import INTERRUPTED
from tools.install import YARD

LOADING = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def test_ctrl_c_while_it_loads_is_silent(tmp_path: Path):
    """It loads for 0.15 s, in which an interrupt printed a traceback."""
    package = tmp_path / "controlplane" / "cli"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(f"{LOADING}def main():\n    return 0\n")
    script = tmp_path / "yard"
    script.write_text(YARD.format(python=sys.executable, root=str(tmp_path), packages=str(tmp_path)))
    ran = subprocess.run(["sh", script], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")


def test_ctrl_c_in_a_command_is_an_exit_code(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "run", lambda argv: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        assert cli.main(["version"]) == INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_command_in_the_background_ignores_ctrl_c(monkeypatch: pytest.MonkeyPatch):
    """A shell starts it so with `yard ... &`, for the Ctrl-C of the program in the foreground."""
    monkeypatch.setattr(cli, "run", lambda argv: os.kill(os.getpid(), signal.SIGINT) or 0)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert cli.main(["version"]) == 0
    finally:
        signal.signal(signal.SIGINT, before)
