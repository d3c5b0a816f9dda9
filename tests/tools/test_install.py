"""`tools/install.py` keeps an environment only for the interpreter that it was made with."""

import sys
from pathlib import Path

import pytest

from tools import install


def test_an_environment_of_another_interpreter_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    other = tmp_path / "python"
    monkeypatch.setattr(install, "PYTHON", other)
    assert not install._has_this_interpreter()
    for version, is_kept in (("3.11.0 (another build)", False), (sys.version, True)):
        other.write_text(f"#!/bin/sh\ncat <<'END'\n{sys.base_prefix} {version}\nEND\n")
        other.chmod(0o755)
        assert install._has_this_interpreter() == is_kept
    other.write_text("#!/bin/sh\nexit 1\n")
    assert not install._has_this_interpreter()
