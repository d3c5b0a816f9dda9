"""A program in the memory engine's pods that follows its membership, as workloads/common/elastic.py does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from django.db.models import F

from controlplane.engines.base import RUNNING, MemberReport
from jobs.models import Job, Pod
from tests.builders import make_job, make_project
from tests.loop.plant import Plant, until_quiet


@dataclass
class Program:
    """The program of a job's pods; `act` lets each take its next step. Ranks in `cold` never become ready, ranks
    in `deaf` ignore new memberships. A worker that left ends one step after it reported so, as a real process
    does."""

    plant: Plant
    job: Job
    cold: set[int] = field(default_factory=set)
    deaf: set[int] = field(default_factory=set)
    _at: dict[int, dict[str, Any]] = field(default_factory=dict)

    def act(self) -> bool:
        """Let each running pod take one step. Return whether a pod did or reported something new."""
        engine, before = self.plant.engine, self._visible()
        running = {report.name for report in engine.pods() if report.state == RUNNING}
        for pod in Pod.objects.filter(job=self.job, attempt__number=F("job__attempt")):
            if pod.name in running and pod.rank not in self.cold:
                self._act(pod)
        return self._visible() != before

    def settle(self) -> None:
        """Run the loop and the program in turn until nothing changes."""
        until_quiet(lambda: [*self.plant.written_by_tick(), *["its pods"] * self.act()])
        self.job.refresh_from_db()

    def in_seconds(self, seconds: int) -> None:
        for _ in range(0, seconds, 10):
            self.plant.tick(10.0)
            self.act()
        self.settle()

    def _visible(self) -> tuple[object, ...]:
        return dict(self.plant.engine.said), self.plant.engine.pods()

    def _act(self, pod: Pod) -> None:
        status = self._at.setdefault(pod.rank, _fresh(pod.rank))
        given = json.loads(self.plant.engine.memberships.get(pod.name, '{"generation": 0, "members": []}'))
        is_member = pod.rank in [member["id"] for member in given["members"]]
        has_ended = status["state"] == "left"
        if given["generation"] > status["generation"] and pod.rank not in self.deaf:
            if is_member:
                _switch(status, given["generation"])
            elif status["generation"]:
                status["state"] = "left"
        self.plant.engine.said[pod.name] = MemberReport(json.dumps(status))
        if has_ended:
            self.plant.engine.finish(pod.name)


def _fresh(rank: int) -> dict[str, Any]:
    return {
        "id": rank,
        "address": f"127.0.0.1:{5000 + rank}",
        "state": "ready",
        "generation": 0,
        "busy_seconds": 0.0,
        "epochs_done": 0,
        "epochs_exact": 0,
        "switches": [],
    }


def _switch(status: dict[str, Any], generation: int) -> None:
    cost = {"step": generation * 100, "pause_seconds": 0.05, "lost_steps": 0, "repeated_steps": 0}
    status |= {"state": "training", "generation": generation, "busy_seconds": 0.1}
    status["switches"].append({"generation": generation, "interrupted_steps": 0, **cost})


def started(plant, workers=2, fewest=1, most=8, quota=8, **program) -> Program:
    """Return the program of a running elastic job with `workers` workers (`fewest` to `most`), in the project
    team-a with `quota` GPUs. `program`: fields of Program."""
    bounds = {"min_workers": fewest, "workers": workers, "max_workers": most}
    job = make_job(make_project(quota=quota), "el", kind="elastic", **bounds)
    found = Program(plant, job, **program)
    found.settle()
    assert (job.state, job.pods_started) == ("running", workers)
    return found


def live(job: Job) -> list[int]:
    """Return the ranks of the job's pods that are not released."""
    return list(Pod.objects.filter(job=job, released_at=None).order_by("rank").values_list("rank", flat=True))
