"""The scheduler's answer: decisions, each with a reason code and the numbers that were compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from controlplane.scheduling.view import PodPlacement

Details = Mapping[str, Any]
"""Plain JSON data: numbers, strings, lists. Field names carry units (`milli_gpus`, `memory_mib`)."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start every pod of `job` on the nodes and devices of `placements`. `reason`: `started_in_quota` or
    `started_over_quota`."""

    job: str
    project: str
    placements: tuple[PodPlacement, ...]
    reason: str
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop `job` and queue it again, so that `beneficiary` can start once the GPUs of `job` are proven free.

    `kind`: `reclaim` between projects, `preempt` within one, `ageing` for a gang that has waited long. The reason is
    always `preempted`; `details` has `by_job`, `by_project` and `kind`, and is recorded on the stopped job.
    """

    job: str
    project: str
    beneficiary: str
    beneficiary_project: str
    kind: Literal["reclaim", "preempt", "ageing"]
    reason: str
    details: Details = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hold:
    """`job` stays queued. `details`: the numbers that were compared, the jobs `ahead` and the `holders` of the
    capacity.

    `is_promised`: capacity is being freed for this job; `details["promised"]` has the placements. The caller must
    record these and pass them as `JobView.promised` in the next view (see `view.placements_from_lists`); otherwise
    the capacity may go to another job. `queue_position`: from 1 over the held jobs of the cluster; None for a job
    that can never start.
    """

    job: str
    project: str
    reason: str
    details: Details
    queue_position: int | None
    is_promised: bool = False


@dataclass(frozen=True, slots=True)
class Growth:
    """Workers to add to the running elastic `job`, within its project's quota. Ranks in `placements` count from 0.

    `is_promised`: jobs in `stopping` (mentions) still hold some of the capacity, so that the workers start later. The
    caller must record the placements and pass them as `JobView.promised` of the active job in the next view.
    """

    job: str
    project: str
    placements: tuple[PodPlacement, ...]
    is_promised: bool = False
    stopping: tuple[Mapping[str, Any], ...] = ()


Decision = Start | Preempt | Hold


@dataclass(frozen=True, slots=True)
class Share:
    """A project's numbers at the start of the cycle. `requested_milli_gpus`: what is allocated and what waiting jobs
    request."""

    project: str
    fair_share_milli_gpus: int
    allocated_milli_gpus: int
    requested_milli_gpus: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions on one view: the jobs to preempt, to start and to hold, each in order.

    `holds`: may be computed only when it is read. `shares`: one entry per project. `promised`: by job id, the
    placements that are being freed for held jobs; known without computing `holds`. `growth`: the missing workers of
    running elastic jobs that get capacity, one entry per job.
    """

    preempts: tuple[Preempt, ...] = ()
    starts: tuple[Start, ...] = ()
    holds: Sequence[Hold] = ()
    shares: tuple[Share, ...] = ()
    promised: Mapping[str, tuple[PodPlacement, ...]] = field(default_factory=dict)
    growth: tuple[Growth, ...] = ()

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """All decisions in the order in which they apply: stop, start, hold."""
        return (*self.preempts, *self.starts, *self.holds)


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the plan's `decisions`, `shares` and `growth` as JSON data. Each decision has its kind as `action`."""
    return {
        "decisions": [{"action": type(item).__name__.lower(), **asdict(item)} for item in plan.decisions],
        "shares": [asdict(share) for share in plan.shares],
        "growth": [asdict(one) for one in plan.growth],
    }
