"""Job states and the table of allowed transitions. Pure: every change of state is checked here."""

from dataclasses import dataclass

QUEUED, STARTING, RUNNING, SCALING = "queued", "starting", "running", "scaling"
SUSPENDED, STOPPING = "suspended", "stopping"
SUCCEEDED, FAILED, STOPPED, TIMED_OUT = "succeeded", "failed", "stopped", "timed_out"

FINAL_STATES = (SUCCEEDED, FAILED, STOPPED, TIMED_OUT)
ACTIVE_STATES = (STARTING, RUNNING, SCALING, STOPPING)  # may hold GPUs
RUNNING_STATES = (RUNNING, SCALING)
# States of an attempt that has not been asked to stop.
WORKING_STATES = (STARTING, *RUNNING_STATES)
STATES = (QUEUED, STARTING, RUNNING, SCALING, SUSPENDED, STOPPING, *FINAL_STATES)

MOVES: dict[str, frozenset[str]] = {
    QUEUED: frozenset({STARTING, SUSPENDED, STOPPED, FAILED, TIMED_OUT}),
    STARTING: frozenset({RUNNING, STOPPING, SUCCEEDED, FAILED, QUEUED}),
    RUNNING: frozenset({SCALING, STOPPING, SUCCEEDED, FAILED, QUEUED}),
    SCALING: frozenset({RUNNING, STOPPING, SUCCEEDED, FAILED, QUEUED}),
    # A pod that exits by itself during a stop does not change the state in which the job ends.
    STOPPING: frozenset({QUEUED, SUSPENDED, SUCCEEDED, FAILED, STOPPED, TIMED_OUT}),
    SUSPENDED: frozenset({QUEUED, STOPPED}),
    **{state: frozenset() for state in FINAL_STATES},
}


@dataclass(frozen=True, slots=True)
class StateStyle:
    """How a state is shown: its label, and its colour as the name of a token in static/css/tokens.css."""

    label: str
    colour: str


LOOKS: dict[str, StateStyle] = {
    QUEUED: StateStyle("Queued", "warning"),
    STARTING: StateStyle("Starting", "accent"),
    RUNNING: StateStyle("Running", "good"),
    SCALING: StateStyle("Scaling", "accent"),
    SUSPENDED: StateStyle("Suspended", "second"),
    STOPPING: StateStyle("Stopping", "warning"),
    SUCCEEDED: StateStyle("Succeeded", "good"),
    FAILED: StateStyle("Failed", "bad"),
    STOPPED: StateStyle("Stopped", "second"),
    TIMED_OUT: StateStyle("Timed out", "bad"),
}


class IllegalMove(ValueError):
    """A transition that the table does not allow."""


def states_before(target: str) -> tuple[str, ...]:
    """Return the states from which a job may move to `target`; conditional UPDATEs use them as their guard."""
    return tuple(state for state, targets in MOVES.items() if target in targets)


def check_move(source: str, target: str) -> None:
    """Raise IllegalMove unless the table allows the transition from `source` to `target`."""
    if target not in MOVES[source]:
        raise IllegalMove(f"A job cannot go from {source} to {target}.")


def is_final(state: str) -> bool:
    """Return whether the state can never change again."""
    return state in FINAL_STATES
