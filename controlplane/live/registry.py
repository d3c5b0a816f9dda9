"""What apps declare in their `live_topics`: kinds of topics about one object of a project (`TOPICS`), and, in one app,
the reader of the overview (`OVERVIEW`) and the follower of a pod's log (`LOG_TAIL`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from controlplane.models import Event
from controlplane.registration import app_modules
from controlplane.scheduling.mentions import Sees

State = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A topic's state as a reader of everything sees it, and under (collection, key) how to make anew the records that
    name jobs of other projects."""

    state: State
    naming: Mapping[tuple[str, str], Callable[[Sees], Any]] = field(default_factory=dict)

    def seen_by(self, sees: Sees) -> State:
        """Return the state for a reader who sees the jobs of these projects. Shares what it need not change."""
        if sees is None or not self.naming:
            return self.state
        state = dict(self.state)
        for (collection, key), make in self.naming.items():
            if state[collection] is self.state[collection]:
                state[collection] = dict(state[collection])
            if key in state[collection]:
                state[collection][key] = make(sees)
        return state


@dataclass(frozen=True, slots=True)
class Touch:
    """An event, and what a feed shows that it may change."""

    event: Event
    subject: str
    project_id: int | None
    state: State


@dataclass(frozen=True, slots=True)
class TopicKind:
    """Topics named `<name>:<subject>`. Only those who see the subject's project may follow one."""

    name: str
    # the subject as it is known here; None for one of the wrong shape
    parse: Callable[[str], str | None]
    # the id of the subject's project, None when there is no such subject
    project_of: Callable[[str], int | None]
    # (subject, its project's id) -> the state now, inside `snapshot_read.one_moment`; None when it is gone
    read: Callable[[str, int], Reading | None]
    # whether the state may be another after the event
    is_touched: Callable[[Touch], bool]


@dataclass(slots=True)
class Batch:
    """New lines of a log. `is_fresh`: a new attempt began or lines were skipped, so listeners need a state."""

    upserts: State
    is_fresh: bool = False


class Tail(Protocol):
    """The growing end of the log of a job's newest attempt at one rank."""

    @property
    def seq(self) -> int:
        """Return the number of the state; it grows."""

    def open(self) -> None:
        """Go to the end of the log."""

    def poll(self, *, look_for_attempt: bool) -> Batch | None:
        """Return what was written since the last call, or None."""

    def state(self) -> State: ...


@cache
def overview_reader() -> Callable[[int], Reading]:
    """Return the function from the newest event's number to the overview."""
    reader: Callable[[int], Reading] = _only("OVERVIEW")
    return reader


@cache
def log_tail() -> Callable[[str, int], Tail]:
    """Return the function from a job's id and a rank to a tail that is not open yet."""
    tail: Callable[[str, int], Tail] = _only("LOG_TAIL")
    return tail


def _only(name: str) -> Any:
    (found,) = [getattr(module, name) for module in app_modules("live_topics") if hasattr(module, name)]
    return found


@cache
def topic_kinds() -> Mapping[str, TopicKind]:
    """Return the declared kinds by name. Raises ValueError for one that is declared twice."""
    kinds: dict[str, TopicKind] = {}
    for module in app_modules("live_topics"):
        for kind in module.TOPICS:
            if kind.name in kinds:
                raise ValueError(f"Two apps declare topics of kind {kind.name}.")
            kinds[kind.name] = kind
    return kinds
