"""Views of jobs from rows. They are made by position, so each value is compared with the field that it belongs to."""

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.loop.constructors import quick_constructor
from controlplane.loop.job_views import JobViews
from controlplane.scheduling.view import JobView, PodPlacement
from datasets.queries.job_data import NO_DATA, JobData

PLACED = (PodPlacement(0, "dgx1-1", ((0, 500),)),)
SPEC = {"cpus": 11, "memory_mib": 12, "node_pool": "h100", "extra_resources": {"rdma": "2"}}
AT = {
    name: datetime.fromtimestamp(at, UTC)
    for at, name in enumerate(("created_at", "not_before", "started_at"), 100)
}


def row_of(**columns: Any) -> dict[str, Any]:
    """A queued job's row, in which every value is another one."""
    plain = {
        "id": "j", "name": "n", "project__name": "p", "submit_rank": 3, "kind": "train", "state": "queued",
        "priority": 4, "is_preemptible": 0, "milli_gpus": 500, "gpu_memory_mib": 6, "pods_wanted": 7, "spec": SPEC,
        "details": {}, "progress": {"checkpoint_at": 8}, "next_state": "", "attempt": 0, **AT,
    }  # fmt: skip
    return plain | columns


def test_a_queued_job():
    details = {
        "by_job": "b",
        "by_project": "q",
        "kind": "reclaim",
        "promised": [{"rank": 0, "node": "dgx1-1", "devices": [[0, 500]]}],
    }
    data = JobData(True, ("here",), ("there",), (("percent", 9),), (("there", 60),))
    found = JobViews().of(row_of(details=details), 10, PLACED, ("dgx1-2",), (("volume", "v"),), data)
    assert found == JobView(
        id="j",
        name="n",
        project="p",
        submit_rank=3,
        kind="train",
        state="queued",
        priority=4,
        is_preemptible=False,
        milli_gpus=500,
        gpu_memory_mib=6,
        pods=7,
        milli_cpus=11,
        memory_mib=12,
        extras=(("rdma", 2),),
        node_pool="h100",
        expected_runtime_seconds=10,
        waiting_since=100,
        not_before=101,
        is_waiting_for_data=True,
        data_progress=(("percent", 9),),
        is_waiting_for_volume=True,
        volume_wait=(("volume", "v"),),
        was_preempted_by="b",
        was_preempted_by_project="q",
        was_preempted_kind="reclaim",
        last_checkpoint_at=8,
        promised=PLACED,
        avoid=("dgx1-2",),
        locations=("here",),
        fillable=("there",),
        copies=(("there", 60),),
    )


def test_a_running_elastic_job():
    spec = SPEC | {"min_workers": 2, "max_workers": 6, "worker_step": 2, "expected_runtime_seconds": 50}
    row = row_of(kind="elastic", state="running", attempt=1, spec=spec | {"max_runtime_seconds": 40})
    found = JobViews().of(row, 10, PLACED, (), (), NO_DATA)
    assert (found.state, found.min_pods, found.sizes, found.placements) == ("active", 2, (2, 4, 6), PLACED)
    assert (found.started_at, found.waiting_since, found.is_stopping) == (102, None, False)
    # Declared, and at most the time limit.
    assert found.expected_runtime_seconds == 40


def test_jobs_that_share_a_spec_may_be_of_different_kinds():
    views, spec = JobViews(), SPEC | {"min_workers": 2, "max_workers": 6}
    kinds = "train", "elastic", "train"
    found = [views.of(row_of(kind=kind, spec=spec), None, (), (), (), NO_DATA) for kind in kinds]
    assert [view.min_pods for view in found] == [None, 2, None]


def test_an_object_made_quickly_is_like_any_other():
    values = [object() for _ in fields(JobView)]
    slow, quick = JobView(*values), quick_constructor(JobView)(*values)  # type: ignore[arg-type]  # any objects
    assert type(quick) is JobView
    assert (quick, hash(quick), repr(quick)) == (slow, hash(slow), repr(slow))
    assert quick_constructor(JobView)("j", "p", 3) == JobView("j", "p", 3)
    with pytest.raises(FrozenInstanceError):
        quick.name = "other"  # type: ignore[misc]  # must raise
    with pytest.raises(TypeError):
        quick_constructor(JobView)("j")  # type: ignore[call-arg]  # must raise
