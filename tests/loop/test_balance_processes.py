"""Workers move between elastic jobs whose pods are real processes of this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.engines.local.engine import LocalEngine
from jobs.models import Job, ScaleOperation
from tests.builders import make_job, make_project
from tests.contract.harness import EngineCase
from tests.engines import give_engine
from tests.loop.elastic_program import live
from tests.loop.plant import Plant
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db
# Follows its membership as workloads/common/elastic.py does, without torch, which costs each process seconds.
WORKER = """
import json, os, threading
home, rank = os.environ["TRAINYARD_ELASTIC_DIR"], int(os.environ["TRAINYARD_RANK"])
said = {"id": rank, "address": f"127.0.0.1:{5000 + rank}", "state": "ready", "generation": 0, "step": 0,
        "busy_seconds": 0.01, "epochs_done": 0, "epochs_exact": 0, "switches": []}
cost = {"at": 0.0, "pause_seconds": 0.01, "lost_steps": 0, "repeated_steps": 0, "interrupted_steps": 0}
pause = threading.Event()
while said["state"] != "left":
    with open(f"{home}/.fresh", "w") as file:
        json.dump(said, file)
    os.replace(f"{home}/.fresh", f"{home}/status.json")
    pause.wait(0.1)
    try:
        given = json.load(open(f"{home}/membership.json"))
    except FileNotFoundError:
        continue
    if given["generation"] > said["generation"]:
        members = [member["id"] for member in given["members"]]
        if rank in members:
            said |= {"state": "training", "generation": given["generation"], "step": 100 * given["generation"]}
            said["switches"].append({**cost, "generation": given["generation"], "step": said["step"],
                                     "workers": len(members), "is_planned": True})
        elif said["generation"]:
            said["state"] = "left"
with open(f"{home}/.fresh", "w") as file:
    json.dump(said, file)
os.replace(f"{home}/.fresh", f"{home}/status.json")
"""


@pytest.fixture
def plant(db: None, tmp_path: Path) -> Iterator[Plant]:
    """Two nodes of eight simulated GPUs on a local engine."""
    plant = Plant()
    case = EngineCase(LocalEngine(plant.cluster.settings, tmp_path), tmp_path, lambda seconds: None)
    give_engine(plant.cluster, case.engine)
    yield plant
    case.close()
    plant.close()


def elastic(project, name: str, most: int, speeds: dict[str, float]) -> Job:
    bounds = {"min_workers": 1, "workers": most, "max_workers": most, "worker_speeds": speeds}
    return make_job(
        project, name, kind="elastic", gpus=4, command=[sys.executable, "-I", "-c", WORKER], **bounds
    )


def test_processes_move_to_a_job_that_waits_and_to_one_that_gains_more(plant):
    project = make_project(quota=8)

    def reach(**sizes: int) -> None:
        def is_so() -> bool:
            plant.tick()
            is_open = ScaleOperation.objects.filter(state__in=("pending", "running")).exists()
            has = {job.name: len(live(job)) for job in Job.objects.filter(name__in=sizes)}
            return not is_open and has == sizes

        wait_until(is_so, 30, f"workers: {sizes}")

    flat = elastic(project, "flat", 4, {"1": 1.0, "4": 1.1})
    wait_until(lambda: plant.tick() or flat.attempts.filter(generations__switched_at__isnull=False).exists())
    elastic(project, "steep", 3, {"1": 1.0, "4": 4.0})
    # A job that has just changed its size gives nothing.
    plant.clock.advance(61)
    reach(flat=3, steep=1)
    Job.objects.update(progress={"eta_seconds": 36_000.0})
    plant.clock.advance(61)
    reach(flat=1, steep=3)
    done = ScaleOperation.objects.values_list("cause", "state", "lost_steps", "repeated_steps")
    assert sorted(set(done)) == [("balance", "succeeded", 0, 0), ("growth", "succeeded", 0, 0)]
