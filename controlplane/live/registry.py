"""Kinds of live topics about one object of a project: an app declares its own as `TOPICS` of its `live_topics`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

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
    parse: Callable[[str], str | None]  # the subject as it is known here; None for one of the wrong shape
    project_of: Callable[
        [str], int | None
    ]  # the id of the subject's project, None when there is no such subject
    # (subject, its project's id) -> the state now, inside `snapshot_read.one_moment`; None when it is gone
    read: Callable[[str, int], Reading | None]
    is_touched: Callable[[Touch], bool]  # whether the state may be another after the event


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
