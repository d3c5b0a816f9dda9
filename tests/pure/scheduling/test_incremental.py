"""A kept state decides exactly what a new one decides, over random sequences of changes."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.incremental import Scheduler, _without_common_ends
from controlplane.scheduling.plan import plan_to_dict
from controlplane.scheduling.view import ClusterView, JobView
from tests.pure.scheduling.builders import apply, gone, job, node, project, running, view
from tests.pure.scheduling.random_views import growing_view, random_view

SEQUENCES = 160
STEPS = 8
SHORT = 4


@pytest.mark.parametrize("first", range(0, SEQUENCES, 40))
def test_a_kept_state_decides_what_a_new_one_decides(first):
    for seed in range(first, first + 40):
        placement = "packed" if seed % 4 else "fragmentation"
        dice, kept, cluster = (
            random.Random(seed),
            Scheduler(),
            replace(random_view(seed), placement=placement),
        )
        for step in range(STEPS):
            plan = decide(cluster)
            assert plan_to_dict(kept.decide(cluster)) == plan_to_dict(plan), (seed, step)
            cluster = _changed(dice, cluster, plan, seed * STEPS + step)


def _changed(dice: random.Random, cluster: ClusterView, plan, seed: int) -> ClusterView:
    """The next view: the plan was carried out or not, time passed or not, and a few things changed."""
    if dice.random() < 0.5:
        cluster = apply(cluster, plan, is_gone=dice.random() < 0.5)
    if dice.random() < 0.3:
        cluster = gone(cluster)
    changes = (_submit, _end, _node_away, _other_quota, _other_limit, _back_off, _checkpoint, _copy)
    for change in dice.sample(changes, dice.randint(0, 2)):
        cluster = change(dice, cluster, seed)
    return replace(cluster, now=cluster.now + dice.choice((0, 0, 1, 60, 200)))


def _submit(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    names = {item.name for item in cluster.projects}
    queue = [item for item in random_view(seed).jobs if item.state == "queued" and item.project in names]
    return replace(cluster, jobs=(*cluster.jobs, *(replace(one, id=f"{one.id}-{seed}") for one in queue[:2])))


def _end(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    left = dice.choice(cluster.jobs) if cluster.jobs else None
    return replace(cluster, jobs=tuple(one for one in cluster.jobs if one is not left))


def _node_away(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    rest = list(cluster.nodes)
    rest[0] = replace(rest[0], is_schedulable=not rest[0].is_schedulable)
    return replace(cluster, nodes=tuple(rest[: dice.choice((len(rest), max(1, len(rest) - 1)))]))


def _other_quota(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    first, *rest = cluster.projects
    return replace(cluster, projects=(replace(first, quota_milli_gpus=dice.choice((0, 1000, 4000))), *rest))


def _other_limit(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    first, *rest = cluster.projects
    return replace(cluster, projects=(replace(first, limit_milli_gpus=dice.choice((None, 1000))), *rest))


def _back_off(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    return _one_other(dice, cluster, "queued", not_before=cluster.now + dice.choice((1, 100)))


def _checkpoint(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    return _one_other(dice, cluster, "active", last_checkpoint_at=cluster.now)


def _copy(dice: random.Random, cluster: ClusterView, seed: int) -> ClusterView:
    """Equal jobs as other objects, in another order."""
    return replace(cluster, jobs=tuple(replace(one) for one in reversed(cluster.jobs)))


def _one_other(dice: random.Random, cluster: ClusterView, state: str, **fields: object) -> ClusterView:
    fitting = [one for one in cluster.jobs if one.state == state]
    chosen = dice.choice(fitting) if fitting else None
    jobs = tuple(replace(one, **fields) if one is chosen else one for one in cluster.jobs)
    return replace(cluster, jobs=jobs)


def _full(*queued: JobView) -> ClusterView:
    jobs = (running(job("a1", "a"), ("n0", [0])), *queued)
    return view([node("n0", 1)], [project("a", 1)], jobs)


def test_an_unchanged_view_gives_the_same_plan_again():
    kept, cluster = Scheduler(), _full(job("a2", "a"))
    plan = kept.decide(cluster)
    assert kept.decide(replace(cluster, now=cluster.now + 5)) is plan
    assert [hold.job for hold in plan.holds] == ["a2"]


def test_the_end_of_a_back_off_is_not_missed():
    kept, cluster = Scheduler(), _full(job("b1", "a", not_before=1010))
    cluster = replace(cluster, jobs=cluster.jobs[1:])
    assert not kept.decide(cluster).starts
    assert not kept.decide(replace(cluster, now=1009)).starts
    assert [start.job for start in kept.decide(replace(cluster, now=1010)).starts] == ["b1"]


def test_holds_that_were_not_read_in_time_are_not_explained_by_a_later_state():
    kept, cluster = Scheduler(), _full(job("a2", "a"), job("a3", "a"))
    late = kept.decide(cluster)
    kept.decide(replace(cluster, jobs=cluster.jobs[:2]))
    with pytest.raises(RuntimeError, match="not read before the next cycle"):
        list(late.holds)


def test_after_a_failure_the_next_decision_begins_anew(monkeypatch):
    kept, cluster = Scheduler(), _full(job("a2", "a"))
    kept.decide(cluster)
    freed = replace(cluster, jobs=cluster.jobs[1:])
    with monkeypatch.context() as broken:
        broken.setattr("controlplane.scheduling.incremental.decide_on", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            kept.decide(freed)
    assert [start.job for start in kept.decide(freed).starts] == ["a2"]


def test_a_kept_state_decides_the_same_where_running_jobs_begin_and_cease_to_lack_workers():
    for seed in range(60):
        dice, kept, cluster = random.Random(seed), Scheduler(), growing_view(seed)
        for step in range(SHORT):
            if dice.random() < 0.4:
                cluster = replace(cluster, jobs=tuple(replace(one, missing=()) for one in cluster.jobs))
            plan = decide(cluster)
            assert plan_to_dict(kept.decide(cluster)) == plan_to_dict(plan), (seed, step)
            cluster = replace(apply(cluster, plan, is_gone=dice.random() < 0.5), now=cluster.now + 10)


@pytest.mark.parametrize("block", [1, 2, 256])
def test_only_the_jobs_between_equal_ends_are_compared(monkeypatch, block):
    monkeypatch.setattr("controlplane.scheduling.incremental.BLOCK", block)
    for seed in range(500):
        dice = random.Random(seed)
        pool = [job(f"j{rank}", "a") for rank in range(6)]
        pool.append(replace(pool[0]))
        before = tuple(dice.choice(pool) for _ in range(dice.randint(0, 6)))
        after = list(before)
        for _ in range(dice.randint(0, 3)):
            at = dice.randint(0, len(after))
            after[at : at + dice.randint(0, 1)] = [dice.choice(pool)] * dice.randint(0, 1)
        left, right = _without_common_ends(before, tuple(after))
        # No identical pair is left at either end, and nothing but the ends is gone.
        assert not (left and right and (left[0] is right[0] or left[-1] is right[-1]))
        cut = len(before) - len(left)
        assert cut == len(after) - len(right)
        assert any(
            (*before[:first], *left, *before[len(before) - cut + first :]) == before
            and (*after[:first], *right, *after[len(after) - cut + first :]) == tuple(after)
            for first in range(cut + 1)
        )
