"""The four-team scenario on the pure core: twenty steps against expected.csv, then five more cycles each."""

from __future__ import annotations

from dataclasses import replace

from controlplane.scheduling.cycle import decide
from tests.pure.scheduling.builders import allocated, apply, job, node, project, view
from tests.scenarios.four_teams.script import NODES, TEAMS, Observed, Step, assert_step, expectations, steps


def test_twenty_steps_end_as_expected():
    cluster = view(
        [node(name, gpus) for name, gpus in NODES.items()], [project(*team) for team in TEAMS.items()]
    )
    expected = expectations()
    preempted_before: set[str] = set()
    for step in steps():
        cluster, preempted = settle(perform(cluster, step))
        assert_step(expected[step.seq], observe(cluster, preempted), preempted_before)
        preempted_before |= preempted
        assert_quiet_for_five_cycles(cluster)
    assert {name: held // 1000 for name, held in allocated(cluster).items()} == {
        "team-a": 8, "team-b": 4, "team-c": 4, "team-d": 0,
    }  # fmt: skip


def test_three_fractions_share_one_device_exactly():
    cluster = view(
        [node(name, gpus) for name, gpus in NODES.items()], [project(*team) for team in TEAMS.items()]
    )
    for step in steps()[:10]:
        cluster, _ = settle(perform(cluster, step))
    shares = [item for item in cluster.jobs if item.id in {"c-1-g05", "c-2-g03", "c-3-g02"}]
    devices = {(pod.node, index) for item in shares for pod in item.placements for index, _ in pod.devices}
    assert len(devices) == 1
    assert sum(pod.milli_gpus for item in shares for pod in item.placements) == 1000


def perform(cluster, step: Step):
    if step.action == "delete":
        return replace(cluster, jobs=tuple(item for item in cluster.jobs if item.id not in step.jobs))
    submitted = job(
        step.jobs[0],
        step.project,
        step.gpus,
        rank=step.seq,
        kind=step.kind,
        is_preemptible=step.kind == "train",
    )
    return replace(cluster, jobs=(*cluster.jobs, submitted), now=cluster.now + 60)


def settle(cluster):
    preempted: set[str] = set()
    for _ in range(5):
        plan = decide(cluster)
        preempted |= {decision.job for decision in plan.preempts}
        cluster = apply(cluster, plan)
    return cluster, preempted


def observe(cluster, preempted) -> Observed:
    active = [item for item in cluster.jobs if item.state == "active"]
    devices = {(pod.node, index) for item in active for pod in item.placements for index, _ in pod.devices}
    return Observed(
        allocated={name: held / 1000 for name, held in allocated(cluster).items()},
        physical_gpus_used=len(devices),
        running=len(active),
        preempted=frozenset(preempted),
        waiting=frozenset(item.id for item in cluster.jobs if item.state == "queued"),
    )


def assert_quiet_for_five_cycles(cluster):
    for _ in range(5):
        plan = decide(cluster)
        assert not plan.starts
        assert not plan.preempts
        cluster = apply(cluster, plan)
