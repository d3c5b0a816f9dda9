"""A part of a plan's holds is that part of all of them, whichever others have been explained."""

import random

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.explain import Explainer
from controlplane.scheduling.incremental import Scheduler
from controlplane.scheduling.order import JobClass
from tests.pure.scheduling import builders
from tests.pure.scheduling.random_views import growing_view, random_view


def crowded(sizes: list[float]) -> builders.ClusterView:
    """One GPU, taken; two projects queue jobs of these sizes in turn."""
    first = builders.running(builders.job("r0", "a"), ("n0", [0]))
    jobs = [builders.job(f"j{rank}", "ab"[rank % 2], gpus, rank) for rank, gpus in enumerate(sizes, 1)]
    return builders.view(
        [builders.node("n0", 2)], [builders.project("a", 1), builders.project("b")], [first, *jobs]
    )


@pytest.mark.parametrize("make", [random_view, growing_view])
def test_a_part_is_that_part_of_all_holds(make):
    dice = random.Random(7)
    for seed in range(150):
        view = make(seed)
        every, holds = tuple(decide(view).holds), decide(view).holds
        assert len(holds) == len(every)
        for _ in range(4):
            first = dice.randrange(len(every) + 2)
            last = first + dice.randrange(4)
            assert tuple(holds[first:last]) == every[first:last]
        assert tuple(holds) == every


def test_a_part_of_the_holds_of_one_project_with_several_sizes():
    view = crowded([1, 2, 1, 1, 2, 2, 1, 1, 2, 1])
    every, holds = tuple(decide(view).holds), decide(view).holds
    for first in range(len(every) + 1):
        assert tuple(holds[first:]) == every[first:]
        assert tuple(holds[: first + 1]) == every[: first + 1]


def test_a_part_of_a_plan_of_the_past_is_refused():
    kept, view = Scheduler(), crowded([2, 2, 2, 2, 2, 2])
    late = kept.decide(view)
    kept.decide(builders.replace(view, jobs=view.jobs[:-1]))
    with pytest.raises(RuntimeError, match="not read before the next cycle"):
        late.holds[:2]


def test_a_search_explains_no_more_than_it_reads(monkeypatch: pytest.MonkeyPatch):
    asked, hold = list[int](), Explainer.hold
    monkeypatch.setattr(
        Explainer, "hold", lambda self, item, position: asked.append(position) or hold(self, item, position)
    )
    holds = decide(crowded([1, 2, 1, 1, 2, 2, 1, 1, 2, 1])).holds
    assert any(one.reason for one in holds)
    assert asked == [1]
    # Read to the end, they are explained once.
    every = tuple(holds)
    explained = len(asked)
    assert tuple(holds) == every
    assert len(asked) == explained


def test_the_first_holds_of_a_long_queue_are_found_without_sorting_it(monkeypatch: pytest.MonkeyPatch):
    asked, turn = list[str](), JobClass.turn
    monkeypatch.setattr(JobClass, "turn", lambda self, job: asked.append(job.id) or turn(self, job))
    holds = decide(crowded([1, 1, 2, 2] * 100)).holds
    asked.clear()
    assert len(holds[:2]) == 2
    assert len(asked) < 20
