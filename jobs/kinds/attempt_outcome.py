"""Decide the next state of a job from the states of its attempt's pods. Pure: the loop writes the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.scheduling.reasons import BACKING_OFF, DISRUPTED, words_for
from jobs import lifecycle
from jobs.kinds.base import Kind, PodEnd

# As in Kubernetes' CrashLoopBackOff: doubled from 10 s up to 5 minutes.
BACKOFF_SECONDS = (10, 20, 40, 80, 160, 300)
# The first disruption requeues a job at once; repeated ones increase the delay but never fail the job, since
# it is not the cause.
DISRUPTION_BACKOFF_SECONDS = (0, *BACKOFF_SECONDS)


@dataclass(frozen=True, slots=True)
class PodStanding:
    """State of one pod of the current attempt. `exit_code`: None while it runs, and if unknown. `is_released`: proven
    gone, its devices are free. `is_disrupted`: its end was caused outside the job
    (controlplane.engines.base.DISRUPTIONS)."""

    rank: int
    state: str
    exit_code: int | None
    is_released: bool
    reason: str = ""
    message: str = ""
    is_disrupted: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The next state of a job. `is_stop`: stop its remaining pods first, then go to `target`. `outcome`: of the
    attempt, "" if it goes on.

    `backoff_seconds`: wait before the next attempt. `is_retry`: counts against the job's retries. `details`: numbers
    stored with the reason.
    """

    target: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    is_stop: bool = False
    outcome: str = ""
    backoff_seconds: int = 0
    is_retry: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)


def next_step(
    kind: Kind,
    state: str,
    next_state: str,
    failures: int,
    retries: int,
    pods: Sequence[PodStanding],
    disruptions: int = 0,
    deciding: Sequence[PodStanding] | None = None,
) -> Step | None:
    """Return the next step of an active job in `state`, or None if it stays as it is.

    `next_state`: the state that a stopping job will reach. `failures`: attempts that failed so far, of which the job
    may retry `retries`. `disruptions`: the number of consecutive attempts before this one that were disrupted.
    `deciding`: the pods whose ends decide the attempt, for kinds whose pods may come and go; None for all.
    """
    everything, pods = pods, pods if deciding is None else deciding
    outcome = kind.outcome([PodEnd(pod.rank, pod.state, pod.exit_code) for pod in pods])
    is_gone = all(pod.is_released for pod in everything)
    if state == lifecycle.STOPPING:
        return _after_stop(next_state, outcome, pods, disruptions) if is_gone else None
    if outcome is not None:
        return _after_outcome(outcome, failures, retries, pods, is_gone, disruptions)
    has_begun = pods and all(pod.state in (lifecycle.RUNNING, lifecycle.SUCCEEDED) for pod in pods)
    if state == lifecycle.STARTING and has_begun:
        return Step(lifecycle.RUNNING)
    return None


def waits_for(pods: Sequence[PodStanding]) -> PodStanding | None:
    """Return the pod with the lowest rank that is pending or starting and reports why it waits; None if there is
    none."""
    return next((pod for pod in pods if pod.state in ("pending", "starting") and pod.reason), None)


def _after_stop(next_state: str, outcome: str | None, pods: Sequence[PodStanding], disruptions: int) -> Step:
    """Return the step after all pods of a stopped attempt are gone: to `next_state`, but an attempt with the
    `outcome` succeeded while its job was being requeued or suspended counts as succeeded, and a node loss detected
    after its peers failed overrides their failures. `disruptions`: as in `next_step`."""
    if outcome == lifecycle.SUCCEEDED and next_state in (lifecycle.QUEUED, lifecycle.SUSPENDED):
        return Step(lifecycle.SUCCEEDED, "completed", "Completed.", 0, outcome=outcome)
    disrupted = _disrupted(pods)
    if next_state == lifecycle.FAILED and disrupted is not None:
        return _after_disruption(disrupted, disruptions, is_gone=True)
    codes = [pod.exit_code for pod in pods if pod.exit_code is not None]
    has_failed = next_state == lifecycle.QUEUED and disrupted is not None
    outcome = DISRUPTED if has_failed else next_state
    return Step(next_state, exit_code=codes[0] if codes else None, outcome=outcome)


def _after_outcome(
    outcome: str,
    failures: int,
    retries: int,
    pods: Sequence[PodStanding],
    is_gone: bool,
    disruptions: int,
) -> Step:
    if outcome == lifecycle.SUCCEEDED:
        return Step(lifecycle.SUCCEEDED, "completed", "Completed.", 0, is_stop=not is_gone, outcome=outcome)
    disrupted = _disrupted(pods)
    if disrupted is not None:
        return _after_disruption(disrupted, disruptions, is_gone=is_gone)
    culprit = next(pod for pod in pods if pod.state == lifecycle.FAILED)
    why = words_for(culprit.reason, culprit.message)
    if failures < retries:
        wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
        return Step(
            lifecycle.QUEUED,
            BACKING_OFF,
            f"Attempt failed ({why or culprit.reason}); retry {failures + 1} of {retries} in {wait} s.",
            culprit.exit_code,
            not is_gone,
            outcome,
            backoff_seconds=wait,
            is_retry=True,
        )
    return Step(
        lifecycle.FAILED, culprit.reason, why, culprit.exit_code, is_stop=not is_gone, outcome=outcome
    )


def _disrupted(pods: Sequence[PodStanding]) -> PodStanding | None:
    """Return the first disrupted pod, None if there is none; its cause overrides the failures that it triggered in
    its peers."""
    return next((pod for pod in pods if pod.state == lifecycle.FAILED and pod.is_disrupted), None)


def _after_disruption(pod: PodStanding, disruptions: int, *, is_gone: bool) -> Step:
    """Return the step that requeues the job after its pod was disrupted, with a backoff that grows with `disruptions`
    and uses no retry. `is_gone`: no other pod must be stopped first."""
    wait = DISRUPTION_BACKOFF_SECONDS[min(disruptions, len(DISRUPTION_BACKOFF_SECONDS) - 1)]
    why = words_for(pod.reason, pod.message)
    when = f"in {wait} s" if wait else "as soon as there is room"
    return Step(
        lifecycle.QUEUED,
        pod.reason,
        f"{why} It starts again {when}.",
        pod.exit_code,
        not is_gone,
        DISRUPTED,
        backoff_seconds=wait,
        details={"disrupted_by": pod.reason, "disruption": why},
    )
