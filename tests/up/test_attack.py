"""The attacks of bench/attack against a real instance, for a second each: other users get their answers."""

from pathlib import Path

import pytest

from bench.attack.__main__ import run
from bench.attack.plant import LOST_MS

pytestmark = pytest.mark.slow
# what is refused, and how; the others are held by tests of their mechanism
ATTACKS = {
    "wrong sign-ins": "429",
    "endless headers": "431",
    "5,000 half-open connections": "ended by the server",
    "a port that never accepts": "429",
    "150 log followers": "429",
}


def test_other_users_are_answered_under_attack(tmp_path: Path) -> None:
    rows = run(tmp_path / "state", list(ATTACKS), 0.75, 0.25)
    for row, answer in zip(rows, ATTACKS.values(), strict=True):
        assert max(row.samples) < LOST_MS, row.note
        assert f"{answer}: " in row.note
