"""The smoke campaign: a real control plane under kill -9 while two people submit. Nothing is lost or run twice.

A failure shows the seed and the faults; TRAINYARD_CAMPAIGN_SEED repeats them, TRAINYARD_CAMPAIGN_JOBS makes it longer.
"""

import logging
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults import verdict
from tests.faults.nemesis import Nemesis
from tests.faults.payload import read_records
from tests.faults.users import User, make_user
from tests.servers import control_plane
from tests.waiting import patience, wait_until

logger = logging.getLogger(__name__)

JOBS_OF_EACH = int(os.environ.get("TRAINYARD_CAMPAIGN_JOBS", "15"))
FAULTS_AT_LEAST = 9
FAST_SECONDS = 5.0  # on a busy machine; who waits for a frozen Redis waits for twice as long and longer


def run_campaign(users: list[User], nemesis: Nemesis) -> None:
    """Everybody works while the nemesis does; then the nemesis rests."""
    with ThreadPoolExecutor(len(users) + 1) as pool:
        evil = pool.submit(nemesis.run)
        people = [pool.submit(user.work, JOBS_OF_EACH) for user in users]
        try:
            for person in people:
                person.result()
            wait_until(lambda: evil.done() or len(nemesis.schedule) >= FAULTS_AT_LEAST, 30, "enough faults")
        finally:
            nemesis.stop()
        evil.result()


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Path]:
    """Where payloads leave their records; nothing of them lives on after the test."""
    directory = tmp_path / "records"
    directory.mkdir()
    yield directory
    verdict.sweep(directory)


@pytest.mark.slow
def test_nothing_is_lost_and_nothing_runs_twice(tmp_path: Path, records: Path) -> None:
    seed = int(os.environ.get("TRAINYARD_CAMPAIGN_SEED", random.randrange(10**6)))
    logger.warning("TRAINYARD_CAMPAIGN_SEED=%d", seed)
    with control_plane(tmp_path / "state") as running:
        users = [
            make_user(running, name, random.Random(f"{seed}-{name}"), str(records)) for name in ("ana", "ben")
        ]
        probes: list[float] = []
        nemesis = Nemesis(
            running, random.Random(seed), lambda: probes.append(users[0].submit("succeeds").seconds)
        )
        run_campaign(users, nemesis)
        wait_until(running.is_ready, timeout=60, what="readiness")
        wait_until(
            lambda: verdict.is_at_rest(users), timeout=60, what=f"rest of {[*map(verdict.unfinished, users)]}"
        )
        found = read_records(records)
        faults = [
            *(fault for user in users for fault in verdict.faults_of_keys(user)),
            *(fault for user in users for fault in verdict.faults_of_jobs(user, found)),
            *verdict.faults_of_records(found),
            *verdict.faults_of_rows(tmp_path / "state" / "db.sqlite3"),
            *(
                f"a POST took {took:.1f} s while Redis was frozen"
                for took in probes
                if took > patience(FAST_SECONDS)
            ),
        ]
        assert not faults, "\n".join(faults)
        assert probes, "Redis was never frozen"
        wait_until(lambda: not verdict.processes_left(records), timeout=10, what="the end of all processes")
