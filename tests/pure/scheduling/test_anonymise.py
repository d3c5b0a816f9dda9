"""A view without names: nothing of them is left, and the scheduler decides the same."""

from __future__ import annotations

import json
from dataclasses import replace

from controlplane.scheduling.anonymise import anonymous
from controlplane.scheduling.cycle import decide
from controlplane.scheduling.replay import replay
from controlplane.scheduling.view import DepartmentView, view_from_dict, view_to_dict
from tests.pure.scheduling.builders import job, nodes, project, running, view

NAMES = ("secretnode", "secretteam", "secretpool", "secretjob", "secretunit", "secretset", "secretnic")


def named():
    """A reclaim between two projects of a department, on named nodes of a named pool."""
    places = tuple(replace(one, name=f"secretnode{one.name}", pool="secretpool", extras=(("secretnic", 2),))
                   for one in nodes(2))  # fmt: skip
    projects = [
        project("secretteam-b", 8, department="secretunit", node_pools=(("train", ("secretpool",)),)),
        project("secretteam-a", 8, department="secretunit"),
    ]
    held = [
        running(job(f"secretjob{at}", "secretteam-b", 8), (f"secretnoden{at}", range(8))) for at in range(2)
    ]
    queued = job("secretjob7", "secretteam-a", 4, was_preempted_by="secretjob99",
                 was_preempted_by_project="secretteam-z", extras=(("secretnic", 1),),
                 data_progress=(("dataset", "secretset"),))  # fmt: skip
    departments = (DepartmentView("secretunit", None, 0),)
    jobs = [replace(one, name="secretjob") for one in (*held, queued)]
    return replace(view(places, projects, jobs), departments=departments, name="secretset")


def test_no_name_is_left():
    text = json.dumps(view_to_dict(anonymous(named())))
    assert not [name for name in NAMES if name in text]


def test_the_scheduler_decides_the_same():
    before, after = decide(named()), decide(anonymous(named()))
    assert [(one.job, one.beneficiary) for one in before.preempts] == [("secretjob1", "secretjob7")]
    assert [(one.job, one.beneficiary) for one in after.preempts] == [("job-2", "job-3")]
    assert [one.reason for one in after.holds] == [one.reason for one in before.holds]


def test_what_was_saved_is_replayed():
    saved = json.loads(json.dumps(view_to_dict(anonymous(named()))))
    assert view_from_dict(saved) == anonymous(named())
    assert replay(saved, "job-3")["reason"] == "preempted"
