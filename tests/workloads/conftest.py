"""Fixtures: runs of several ranks, each done once for all tests that check it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.waiting import patience

ROOT = Path(__file__).resolve().parents[2]
# What these programs compute is checked on CPUs, on a machine with GPUs too; bench.gpu runs them on a GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


class RanksStory(NamedTuple):
    """The result that tests/workloads/ranks_run.py printed as JSON (`told`), and the lines of its ranks."""

    told: dict[str, Any]
    printed: list[str]


@pytest.fixture(scope="session")
def ranks_story(tmp_path_factory: pytest.TempPathFactory) -> RanksStory:
    command = [sys.executable, "-m", "tests.workloads.ranks_run", str(tmp_path_factory.mktemp("ranks"))]
    ran = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=patience(240),
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    *printed, last = ran.stdout.splitlines()
    return RanksStory(json.loads(last), printed)
