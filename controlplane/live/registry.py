"""What apps declare in their module `live_topics`: `TOPICS`, kinds of topics about one object of a project,
and in one app `OVERVIEW`, which reads the overview, and `LOG_TAIL`, which follows a pod's log."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol
from uuid import UUID

from controlplane.models import Event
from controlplane.registration import app_modules
from controlplane.scheduling.mentions import Sees

State = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Reading:
    """A topic's complete state. `naming`: by (collection, key), how to rebuild the records that name jobs,
    for readers who may not see all projects."""

    state: State
    naming: Mapping[tuple[str, str], Callable[[Sees], Any]] = field(default_factory=dict)

    def seen_by(self, sees: Sees) -> State:
        """Return the state for a reader of the projects `sees` (None: all). Unchanged records are shared, not
        copied."""
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
    """An event, and the subject, project and state of a feed: what a topic's `is_touched` decides by."""

    event: Event
    subject: str
    project_id: int | None
    state: State


def parse_id(subject: str) -> str | None:
    """Return a UUID in its normal form, None for other text: how topics named by an id parse their subject."""
    try:
        return str(UUID(subject)) if len(subject) in (32, 36) else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class TopicKind:
    """A kind of topics, named `<name>:<subject>`. Only users who may view the subject's project can follow one."""

    name: str
    # Returns the subject in its normal form; None if it is malformed.
    parse: Callable[[str], str | None]
    # Returns the id of the subject's project; None if there is no such subject.
    project_of: Callable[[str], int | None]
    # Returns the present state for (subject, its project's id), called inside `snapshot_read.one_moment`; None if
    # the subject is gone.
    read: Callable[[str, int], Reading | None]
    # Returns whether the state may have changed by the event.
    is_touched: Callable[[Touch], bool]


@dataclass(slots=True)
class Batch:
    """New lines of a log, as the records to add to the topic's state. `is_fresh`: a new attempt began or lines were
    skipped, so listeners need a complete state."""

    upserts: State
    is_fresh: bool = False


class Tail(Protocol):
    """The end of the log of a job's newest attempt at one rank."""

    @property
    def seq(self) -> int:
        """Return the version number of the tail; every new line or other change increases it."""

    def open(self) -> None:
        """Move to the end of the log of the newest attempt; `state` then returns its last lines."""

    def poll(self, *, look_for_attempt: bool) -> Batch | None:
        """Return what was written since the last call; None if nothing was. `look_for_attempt`: an event about the job
        occurred, so check also whether a new attempt began and whether the pod ended without a log."""

    def state(self) -> State: ...


@cache
def overview_reader() -> Callable[[int], Reading]:
    """Return the function that reads the overview, given the number of the newest event."""
    reader: Callable[[int], Reading] = _only("OVERVIEW")
    return reader


@cache
def log_tail() -> Callable[[str, int], Tail]:
    """Return the function that creates an unopened tail, given a job's id and a rank."""
    tail: Callable[[str, int], Tail] = _only("LOG_TAIL")
    return tail


def _only(name: str) -> Any:
    (found,) = [getattr(module, name) for module in app_modules("live_topics") if hasattr(module, name)]
    return found


@cache
def topic_kinds() -> Mapping[str, TopicKind]:
    """Return the declared kinds by name. Raise ValueError if a name is declared twice."""
    kinds: dict[str, TopicKind] = {}
    for module in app_modules("live_topics"):
        for kind in module.TOPICS:
            if kind.name in kinds:
                raise ValueError(f"Two apps declare topics of kind {kind.name}.")
            kinds[kind.name] = kind
    return kinds
