"""What becomes of an attempt, given how its pods stand. Pure: the loop writes what this says."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs import lifecycle
from jobs.kinds.base import Kind, PodEnd

BACKOFF_SECONDS = (10, 20, 40, 80, 160, 300)


@dataclass(frozen=True, slots=True)
class PodStanding:
    """One pod of the current attempt. `is_released`: proven gone, its devices are free."""

    rank: int
    state: str
    exit_code: int | None
    is_released: bool
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """The next state of a job. `is_stop`: its remaining pods are to be stopped first, then it goes to `target`."""

    target: str
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    is_stop: bool = False
    outcome: str = ""
    backoff_seconds: int = 0


def next_step(
    kind: Kind, state: str, next_state: str, failures: int, retries: int, pods: Sequence[PodStanding]
) -> Step | None:
    """Return what follows for an active job, or None while there is nothing to do."""
    outcome = kind.outcome([PodEnd(pod.rank, pod.state, pod.exit_code) for pod in pods])
    is_gone = all(pod.is_released for pod in pods)
    if state == lifecycle.STOPPING:
        return _after_stop(next_state, outcome, pods) if is_gone else None
    if outcome is not None:
        return _after_outcome(outcome, failures, retries, pods, is_gone)
    if state == lifecycle.STARTING and pods and all(pod.state == lifecycle.RUNNING for pod in pods):
        return Step(lifecycle.RUNNING)
    return None


def _after_stop(next_state: str, outcome: str | None, pods: Sequence[PodStanding]) -> Step:
    """Work that finished while it was being sent back to the queue is done, not lost."""
    if outcome == lifecycle.SUCCEEDED and next_state in (lifecycle.QUEUED, lifecycle.SUSPENDED):
        return Step(lifecycle.SUCCEEDED, "completed", "Completed.", 0, outcome=outcome)
    codes = [pod.exit_code for pod in pods if pod.exit_code is not None]
    return Step(next_state, exit_code=codes[0] if codes else None, outcome=next_state)


def _after_outcome(
    outcome: str, failures: int, retries: int, pods: Sequence[PodStanding], is_gone: bool
) -> Step:
    if outcome == lifecycle.SUCCEEDED:
        return Step(lifecycle.SUCCEEDED, "completed", "Completed.", 0, is_stop=not is_gone, outcome=outcome)
    culprit = next(pod for pod in pods if pod.state == lifecycle.FAILED)
    if failures < retries:
        wait = BACKOFF_SECONDS[min(failures, len(BACKOFF_SECONDS) - 1)]
        why = culprit.message or culprit.reason
        message = f"Attempt failed ({why}); retry {failures + 1} of {retries} in {wait} s."
        return Step(
            lifecycle.QUEUED,
            "backing_off",
            message,
            culprit.exit_code,
            not is_gone,
            outcome,
            backoff_seconds=wait,
        )
    return Step(
        lifecycle.FAILED,
        culprit.reason,
        culprit.message,
        culprit.exit_code,
        is_stop=not is_gone,
        outcome=outcome,
    )
