"""What jobs ask of nodes beside GPUs and memory: counted, waited for, taken back, and impossible in words."""

import pytest

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.suggestions import suggest
from controlplane.scheduling.view import view_from_dict, view_to_dict
from tests.pure.scheduling.builders import hold_of, job, names, node, project, running, settle, view

EFA, PAGES = "vpc.amazonaws.com/efa", "hugepages-2Mi"


def efa(name, project_name="a", amount=4, **more):
    return job(name, project_name, extras=((EFA, amount),), **more)


def fabric(*amounts, gpus=2):
    """One node for each amount of EFA interfaces."""
    return [node(f"n{index}", gpus, extras=((EFA, amount),)) for index, amount in enumerate(amounts)]


def places(plan):
    return {start.job: [pod.node for pod in start.placements] for start in plan.starts}


def test_a_job_goes_where_its_resources_are():
    plan = decide(view(fabric(0, 4), [project("a", 4)], [efa("j1"), job("j2", "a"), job("j3", "a")]))
    assert places(plan)["j1"] == ["n1"]
    assert len(plan.starts) == 3


def test_each_pod_of_a_gang_takes_its_own():
    cluster = view(fabric(4, 0, 4, gpus=4), [project("a", 12)], [efa("j1", pods=2)])
    assert places(decide(cluster)) == {"j1": ["n0", "n2"]}


def test_what_is_in_use_is_waited_for_by_name():
    holder = running(efa("j1"), ("n0", [0]))
    plan = decide(view(fabric(4), [project("a", 2)], [holder, efa("j2")]))
    assert plan.starts == ()
    hold = hold_of(plan, "j2")
    assert (hold.reason, hold.details["resource"]) == ("cluster_full", EFA)
    assert f"No node has enough {EFA} free for it" in describe(hold.reason, hold.details)


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        (
            (("rdma/hca", 1),),
            "No node of this cluster gives jobs rdma/hca. If one has it, an admin may allow it",
        ),
        (((EFA, 8),), f"No node of this cluster has 8 {EFA}. The largest that fits is 4 {EFA}."),
        (((PAGES, 2 << 30),), f"has 2048 MiB of {PAGES}. The largest that fits is 1024 MiB of {PAGES}."),
    ],
)
def test_what_no_node_has_is_impossible_in_words(extras, words):
    here = [node("n0", extras=((EFA, 4), (PAGES, 1 << 30)))]
    hold = hold_of(decide(view(here, [project("a", 2)], [job("j1", "a", extras=extras)])), "j1")
    assert hold.reason == "spec_impossible"
    assert words in describe(hold.reason, hold.details)


def test_an_owner_gets_it_back_from_who_holds_it_and_not_from_others():
    """Two borrowers, a GPU each; only one of them holds the interfaces that the owner asks for."""
    borrowers = [running(job("j1", "b"), ("n0", [0])), running(efa("j2", "b"), ("n0", [1]))]
    cluster = view(fabric(4), [project("a", 2), project("b", 0)], [*borrowers, efa("j3")])
    assert names(decide(cluster).preempts) == ["j2"]


def test_a_gpu_that_is_free_is_not_enough_where_its_owner_lacks_the_rest():
    borrower = running(efa("j1", "b"), ("n0", [0]))
    plan = decide(view(fabric(4), [project("a", 2), project("b", 0)], [borrower, efa("j2")]))
    assert names(plan.preempts) == ["j1"]


def test_what_was_promised_is_kept():
    """Two interfaces are free while four more are being freed for who needs all six: nobody else gets those two."""
    borrower = running(efa("j1", "b"), ("n0", [0]))
    small = efa("j3", "a", amount=2)
    cluster = view(
        fabric(6, gpus=3), [project("a", 2), project("b", 0)], [borrower, efa("j2", amount=6), small]
    )
    plan = decide(cluster)
    assert (names(plan.preempts), plan.starts) == (["j1"], ())
    after = settle(cluster, decide)
    assert [item.id for item in after.jobs if item.state == "active"] == ["j2"]


def test_a_view_with_extras_is_kept_and_read_again():
    cluster = view(fabric(4), [project("a", 2)], [efa("j1")])
    assert view_from_dict(view_to_dict(cluster)) == cluster


def test_gpus_are_short_where_the_rest_is_free():
    """One node has GPUs and no EFA, the other EFA and no GPU left: nobody waits for EFA."""
    taker = running(job("j1", "b", 2), ("n1", [0, 1]))
    cluster = view(fabric(0, 4), [project("a", 0), project("b", 2)], [taker, efa("j2", amount=1)])
    hold = hold_of(decide(cluster), "j2")
    assert hold.reason == "over_fair_share"
    assert "resource" not in hold.details
    assert not any(fix["change"] == "ask_for_gpus" for fix in suggest(cluster, "j2"))


def test_of_two_things_that_are_short_the_first_is_named():
    taker = running(efa("j1", milli_cpus=64_000), ("n0", [0]))
    plan = decide(view(fabric(4), [project("a", 2)], [taker, efa("j2", milli_cpus=1000)]))
    assert hold_of(plan, "j2").details["resource"] == "cpus"
    two = (("rdma/hca", 1), (EFA, 1))
    here = [node("n0", 2, extras=two)]
    taker = running(job("j1", "a", extras=two), ("n0", [0]))
    plan = decide(view(here, [project("a", 2)], [taker, job("j2", "a", extras=two)]))
    assert hold_of(plan, "j2").details["resource"] == "rdma/hca"


def test_the_largest_that_fits_has_the_rest_too():
    here = [node("n0", 8), node("n1", 4, extras=((EFA, 4),))]
    plan = decide(view(here, [project("a", 12)], [efa("j1", gpus=8)]))
    assert hold_of(plan, "j1").details | {"asked": 8000, "largest": 4000} == hold_of(plan, "j1").details


def test_what_there_is_but_not_together_is_said_so():
    here = [node("n0", 8), node("n1", 0, milli_cpus=256_000)]
    hold = hold_of(decide(view(here, [project("a", 8)], [job("j1", "a", milli_cpus=200_000)])), "j1")
    words = describe(hold.reason, hold.details)
    assert (
        "has 1 GPU together with the other resources that it requests. The largest that fits is 0 GPUs."
        in words
    )


def test_one_who_holds_all_of_it_goes_before_four_who_hold_a_part():
    small = [
        running(efa(f"j{index}", "b", amount=1, milli_cpus=2000), ("n0", [index])) for index in range(1, 5)
    ]
    big = running(efa("j9", "b"), ("n0", [5]))
    cluster = view(fabric(8, gpus=8), [project("a", 4), project("b", 0)], [*small, big, efa("j10")])
    assert names(decide(cluster).preempts) == ["j9"]


def test_who_holds_what_is_not_short_stays():
    small = [running(efa(f"j{index}", "b", amount=1, milli_cpus=1000), ("n0", [index])) for index in range(8)]
    big = running(job("j8", "b", milli_cpus=56_000), ("n0", [8]))
    taker = efa("j9", amount=1, milli_cpus=8000)
    here = [node("n0", 10, extras=((EFA, 64),))]
    cluster = view(here, [project("a", 4), project("b", 0)], [*small, big, taker])
    assert names(decide(cluster).preempts) == ["j8"]


def test_one_whose_interfaces_were_taken_is_told_that_it_waits_for_those():
    cluster = view(
        fabric(4), [project("a", 2), project("b", 0)], [running(efa("j1", "b"), ("n0", [0])), efa("j2")]
    )
    hold = hold_of(decide(settle(cluster, decide)), "j1")
    assert (hold.reason, hold.details["blocked_by"]) == ("preempted", "cluster_full")
    assert describe(hold.reason, hold.details) == (
        "Its room went to job j2 of a, which reclaimed it. "
        f"It keeps its place in the queue and restarts when a node has enough {EFA} free."
    )
