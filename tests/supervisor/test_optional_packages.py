"""Packages that an import does without, while other threads go on importing them."""

import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from controlplane.config.optional_packages import without


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that nobody has imported yet."""
    (tmp_path / "seldom_used.py").write_text("answer = 42\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "seldom_used", raising=False)
    return "seldom_used"


def test_a_package_is_missing_inside_the_block_alone(package: str):
    with without(package), pytest.raises(ImportError, match=package):
        importlib.import_module(package)
    assert importlib.import_module(package).answer == 42
    with without(package):
        assert importlib.import_module(package).answer == 42


def test_another_thread_still_imports_it(package: str):
    """Celery is imported by a thread of the web server, while requests may need YAML."""
    with ThreadPoolExecutor(1) as other, without(package):
        assert other.submit(importlib.import_module, package).result().answer == 42
    assert sys.modules[package].answer == 42
