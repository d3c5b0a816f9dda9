"""What becomes of an attempt: its own failures, and ends that say nothing of the job."""

import pytest

from controlplane.scheduling.reasons import REASONS
from jobs.kinds.attempt_outcome import DISRUPTION_BACKOFF_SECONDS, PodStanding, Step, next_step, waits_for
from jobs.kinds.registry import KINDS

TRAIN = KINDS["train"]
DISRUPTIONS = (
    "node_lost", "unschedulable", "evicted", "pod_deleted", "no_such_node", "no_such_device", "quota_refused",
    "credentials_refused", "cluster_failed", "pod_lost", "definition_missing", "not_mounted",
)  # fmt: skip


def pod(
    rank: int, state: str = "running", reason: str = "", *, is_released: bool = True, **fields
) -> PodStanding:
    exit_code = fields.pop("exit_code", None)
    is_disrupted = reason in DISRUPTIONS
    return PodStanding(rank, state, exit_code, is_released, reason, is_disrupted=is_disrupted, **fields)


def after(
    *pods: PodStanding, state: str = "running", next_state: str = "", retries: int = 0, **fields
) -> Step:
    step = next_step(TRAIN, state, next_state, fields.pop("failures", 0), retries, pods, **fields)
    assert step is not None
    return step


@pytest.mark.parametrize("reason", DISRUPTIONS)
@pytest.mark.parametrize("retries", [0, 3])
def test_a_disruption_sends_the_job_back_and_uses_no_retry(reason, retries):
    step = after(pod(0, "failed", reason, message="Taint node.kubernetes.io/unreachable"), retries=retries)
    assert (step.target, step.reason, step.outcome) == ("queued", reason, "disrupted")
    assert (step.is_retry, step.backoff_seconds, step.is_stop) == (False, 0, False)
    assert step.message == "Taint node.kubernetes.io/unreachable. It starts again as soon as there is room."


def test_what_is_disrupted_again_and_again_comes_back_less_and_less_often_for_ever():
    steps = [after(pod(0, "failed", "unschedulable"), disruptions=count) for count in range(12)]
    assert [step.backoff_seconds for step in steps] == [*DISRUPTION_BACKOFF_SECONDS, *[300] * 5]
    assert {step.target for step in steps} == {"queued"}
    assert steps[1].message == "The cluster could not bind it to the chosen node. It starts again in 10 s."


def test_running_out_of_memory_is_the_jobs_own_failure():
    culprit = pod(0, "failed", "out_of_memory", exit_code=137)
    step = after(culprit)
    assert (step.target, step.reason, step.message) == (
        "failed", "out_of_memory", "It used more memory than its limit.",
    )  # fmt: skip
    retried = after(culprit, retries=1)
    assert (retried.target, retried.reason, retried.is_retry) == ("queued", "backing_off", True)


def test_a_gang_is_stopped_whole_before_it_goes_back():
    step = after(pod(0, is_released=False), pod(1, "failed", "node_lost"))
    assert (step.target, step.is_stop) == ("queued", True)


def test_what_peers_make_of_a_lost_node_is_not_the_jobs_failure():
    step = after(pod(0, "failed", "exit_code", exit_code=1), pod(1, "failed", "node_lost"))
    assert (step.target, step.reason) == ("queued", "node_lost")
    late = after(
        pod(0, "failed", "exit_code", exit_code=1),
        pod(1, "failed", "node_lost"),
        state="stopping",
        next_state="failed",
    )
    assert (late.target, late.outcome) == ("queued", "disrupted")


@pytest.mark.parametrize("next_state", ["stopped", "suspended", "timed_out"])
def test_what_a_user_asked_for_holds_whatever_else_happens(next_state):
    step = after(pod(0, "failed", "node_lost"), state="stopping", next_state=next_state)
    assert step.target == next_state


def test_the_next_attempt_waits_until_every_pod_is_gone():
    pods = [pod(0, "failed", "node_lost", is_released=False), pod(1, "failed", "stopped")]
    assert next_step(TRAIN, "stopping", "queued", 0, 0, pods) is None


def test_the_lowest_rank_says_what_a_starting_job_waits_for():
    pods = [pod(0), pod(1, "starting", "pulling_image"), pod(2, "pending", "quota_refused")]
    found = waits_for(pods)
    assert found is not None
    assert found.reason == "pulling_image"
    assert waits_for([pod(0), pod(1, "starting")]) is None


def test_a_gang_of_which_a_rank_is_done_before_the_last_one_runs_is_running():
    done = pod(0, "succeeded", "completed", exit_code=0)
    assert after(done, pod(1, is_released=False), state="starting").target == "running"
    assert next_step(TRAIN, "starting", "", 0, 0, [done, pod(1, "starting")]) is None


def test_every_code_of_a_cluster_has_words():
    from controlplane.engines import base

    codes = [
        *base.DISRUPTIONS, base.OUT_OF_MEMORY, base.IMAGE_PULL_FAILED, base.CONTAINER_NOT_CREATED, base.PULLING_IMAGE,
        base.WAITING_FOR_NODE, base.QUOTA_REFUSED, base.ADMISSION_REFUSED, base.NAMESPACE_NOT_OURS,
        base.NOT_PERMITTED, base.NAME_TAKEN, base.CANNOT_SHARE,
    ]  # fmt: skip
    for code in codes:
        assert REASONS[code].label
        assert REASONS[code].sentence({}).endswith(".")
    assert set(DISRUPTIONS) == base.DISRUPTIONS - {base.PREEMPTED}  # which the loop tells by itself


def test_a_disruption_that_had_pods_left_to_stop_counts_as_one():
    """Or a gang that is disrupted every time would come back at once, every time."""
    stopped = pod(1, "failed", "stopped", exit_code=143)
    step = after(pod(0, "failed", "node_lost"), stopped, state="stopping", next_state="queued")
    assert (step.target, step.outcome) == ("queued", "disrupted")
    assert after(stopped, state="stopping", next_state="queued").outcome == "queued", "it gave way"
