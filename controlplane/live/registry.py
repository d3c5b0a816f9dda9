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
    """A topic's complete state as an admin sees it. `naming`: for each (collection, key) of a record that names jobs,
    how to build it for a reader who may not view all projects."""

    state: State
    naming: Mapping[tuple[str, str], Callable[[Sees], Any]] = field(default_factory=dict)

    def seen_by(self, sees: Sees) -> State:
        """Return the state for a reader who may view the projects `sees` (None: all). Records without names are
        shared, not copied."""
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
    """What a topic's `is_touched` decides by: an event, and the subject, project and state of a feed."""

    event: Event
    subject: str
    project_id: int | None
    state: State


def parse_id(subject: str) -> str | None:
    """Return a UUID in its normal form, None for any other text. For topics whose subject is an id."""
    try:
        return str(UUID(subject)) if len(subject) in (32, 36) else None
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class TopicKind:
    """A kind of topics, named `<name>:<subject>`, such as `job:<id>`. Only users who may view the subject's project
    can follow one."""

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
    """New lines of a log, as records to add to the topic's state. `is_fresh`: a new attempt began or lines were
    skipped, so listeners need the complete state instead."""

    upserts: State
    is_fresh: bool = False


class Tail(Protocol):
    """Follows the log of a job's newest attempt at one rank."""

    @property
    def seq(self) -> int:
        """Return the version of `state`; every new line or other change increases it."""

    def open(self) -> None:
        """Move to the end of the newest attempt's log; `state` then contains its last lines. Call it before the other
        methods."""

    def poll(self, *, look_for_attempt: bool) -> Batch | None:
        """Return what was written since the last call, None if nothing. `look_for_attempt`: an event about the job
        occurred, so check for a new attempt, and for a pod that ended without a log."""

    def state(self) -> State: ...


@cache
def overview_reader() -> Callable[[int], Reading]:
    """Return the function that reads the overview; it takes the newest event's number."""
    reader: Callable[[int], Reading] = _only("OVERVIEW")
    return reader


@cache
def log_tail() -> Callable[[str, int], Tail]:
    """Return the function that creates a tail, not yet opened, for a job's id and a rank."""
    tail: Callable[[str, int], Tail] = _only("LOG_TAIL")
    return tail


def _only(name: str) -> Any:
    (found,) = [getattr(module, name) for module in app_modules("live_topics") if hasattr(module, name)]
    return found


@cache
def topic_kinds() -> Mapping[str, TopicKind]:
    """Return the kinds of topics that apps declare, by name. Raise ValueError if a name is declared twice."""
    kinds: dict[str, TopicKind] = {}
    for module in app_modules("live_topics"):
        for kind in module.TOPICS:
            if kind.name in kinds:
                raise ValueError(f"Two apps declare topics of kind {kind.name}.")
            kinds[kind.name] = kind
    return kinds
