"""The hub's reader, on a thread of its own: finds the topics that events changed, and reads their states."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from django.db import DatabaseError
from django.utils import timezone

from controlplane.live import topics
from controlplane.live.activity import activity_after, activity_at
from controlplane.live.changes import Change, diff
from controlplane.live.frames import Frame, Window, change_frame, state_frame
from controlplane.live.identity import Identity, still_valid
from controlplane.live.listener import Listener
from controlplane.live.registry import Reading, State, Tail, Touch, log_tail, overview_reader, topic_kinds
from controlplane.live.snapshot_read import one_moment
from controlplane.live.topics import Topic
from controlplane.models import Event, Project

logger = logging.getLogger(__name__)

# The most events read at once; if there are more, every topic counts as changed.
EVENTS_MOST = 1000
# No topic contains tokens or users, so these events change none.
PRIVATE_KINDS = ("token.", "user.")
ACCESS_KINDS = (*PRIVATE_KINDS, "project.member", "project.deleted", "project.created")

Key: TypeAlias = tuple[str, frozenset[int] | None]


@dataclass(eq=False, slots=True)
class Feed:
    """One topic for all readers with equal rights, who receive the same bytes.

    `project_id`: the project of its subject, None for a topic of the whole instance. `project_ids`: the projects that
    these readers may view, None for all. `seq`: the number of `state`: an event number, for a log that of its tail.
    `empty_since`: when its last listener left, by time.monotonic(). `is_unreadable`: the last read of the log failed.
    """

    topic: Topic
    project_id: int | None
    project_ids: frozenset[int] | None
    state: State
    seq: int
    window: Window
    tail: Tail | None = None
    listeners: dict[Listener, None] = field(default_factory=dict)
    empty_since: float | None = None
    is_unreadable: bool = False
    _fresh: Frame | None = None

    @property
    def key(self) -> Key:
        return self.topic.name, self.project_ids

    def fresh(self) -> Frame:
        """Return the frame with the complete state. It is encoded once per state."""
        if self._fresh is None or self._fresh.seq not in self.window.points:
            self._fresh = state_frame(self.topic.name, self.seq, self.state, now_text())
        return self._fresh

    def forget_fresh(self) -> None:
        self._fresh = None


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A subscription that the next read of the database will answer. `since`: the event number after which to
    continue, None for the complete state."""

    listener: Listener
    topic: Topic
    since: int | None


@dataclass(frozen=True, slots=True)
class Update:
    """A feed's new state, with the frame that its listeners get; `frame` None: send them the complete state.
    `is_gone`: the topic's subject was deleted."""

    feed: Feed
    state: State
    seq: int
    frame: Frame | None = None
    is_gone: bool = False


@dataclass(slots=True)
class TickResult:
    """The result of one read of the database, up to event number `seq`. `answers`: each request with its feed, or
    with the code of the error that refuses it. `identities`: each checked identity with its current form, None if it
    is no longer valid."""

    seq: int
    updates: list[Update] = field(default_factory=list)
    answers: list[tuple[SubscribeRequest, Feed | str]] = field(default_factory=list)
    identities: dict[Identity, Identity | None] = field(default_factory=dict)
    had_events: bool = False
    # More events occurred than were read, so every topic counts as changed.
    is_all: bool = False


class Reader:
    """Reads the database for the hub. Not thread-safe: call it from one thread only."""

    def __init__(self) -> None:
        self.seq: int | None = None
        # Readings at the present event number, so that a topic followed by several groups is read once.
        self._readings: dict[str, Reading | None] = {}
        self._names: dict[int, str] | None = None

    def look(
        self,
        feeds: Sequence[Feed],
        requests: Sequence[SubscribeRequest],
        identities: Iterable[Identity],
        *,
        is_recheck_due: bool,
    ) -> TickResult:
        """Return what changed in the feeds since the last call, and the answers to `requests`. `identities` are
        checked again if `is_recheck_due`, if an event may have changed rights, or if too many events occurred to read
        them. Raises DatabaseError if the database does not answer."""
        seq = Event.objects.last_seq()
        if seq == self.seq and not requests and not is_recheck_due:
            return TickResult(seq, updates=_log_updates(feeds, []))
        with one_moment():
            result, events = self._changes(feeds)
            if is_recheck_due or result.is_all or _is_about_rights(events):
                result.identities = still_valid(identities, timezone.now())
            result.answers = self._answers(feeds, requests, result)
        self._keep_overview()
        result.updates += _log_updates(feeds, events, is_all=result.is_all)
        self.seq = result.seq
        return result

    def _changes(self, feeds: Sequence[Feed]) -> tuple[TickResult, Sequence[Event]]:
        seq, before = Event.objects.last_seq(), self.seq
        if seq != before:
            self._forget()
        if before is None or seq == before:
            return TickResult(seq), []
        events = list(Event.objects.after(before, EVENTS_MOST))
        # Event numbers have no gaps: fewer events than numbers means that the limit was reached.
        is_all = len(events) != seq - before
        touched = [feed for feed in feeds if feed.tail is None and _is_touched_by(feed, events, is_all)]
        read = [(feed, self._state_after(feed, seq, None if is_all else events)) for feed in touched]
        updates = [update for feed, state in read if (update := _update(feed, state, seq)) is not None]
        return TickResult(seq, updates, had_events=True, is_all=is_all), events

    def _state_after(self, feed: Feed, seq: int, events: Sequence[Event] | None) -> State | None:
        """Return the feed's state at event number `seq`; None if its subject was deleted. `events`: those since the
        feed's last state, None if there were too many to read."""
        if feed.topic.kind != topics.ACTIVITY:
            return self._read(feed.topic, feed.project_id, feed.project_ids, seq)
        if events is None:
            return activity_at(seq)
        return activity_after(
            feed.state, [(event.seq, event.kind) for event in events if is_touched(feed, event)]
        )

    def _read(
        self, topic: Topic, project_id: int | None, project_ids: frozenset[int] | None, seq: int
    ) -> State | None:
        if topic.kind == topics.ACTIVITY:
            return activity_at(seq)
        name = topic.name if topic.kind in topic_kinds() else topics.OVERVIEW
        if name not in self._readings:
            self._readings[name] = _reading(topic, project_id, seq)
        reading = self._readings[name]
        if reading is None:
            return None
        state = reading.seen_by(self._names_of(project_ids))
        return queue_of(state) if topic.kind == topics.QUEUE else state

    def _names_of(self, project_ids: frozenset[int] | None) -> frozenset[str] | None:
        if project_ids is None:
            return None
        if self._names is None:
            self._names = dict(Project.objects.values_list("pk", "name"))
        return frozenset(self._names[key] for key in project_ids if key in self._names)

    def _forget(self) -> None:
        self._readings, self._names = {}, None

    def _keep_overview(self) -> None:
        """Drop the cached readings except the overview, which the next subscriber needs."""
        self._readings = {name: kept for name, kept in self._readings.items() if name == topics.OVERVIEW}

    def _answers(
        self, feeds: Sequence[Feed], requests: Sequence[SubscribeRequest], found: TickResult
    ) -> list[tuple[SubscribeRequest, Feed | str]]:
        gone = {update.feed for update in found.updates if update.is_gone}
        known = {feed.key: feed for feed in feeds if feed not in gone}
        answers: list[tuple[SubscribeRequest, Feed | str]] = []
        for ask in requests:
            identity = found.identities.get(ask.listener.identity, ask.listener.identity)
            answers.append((ask, self._answer(ask.topic, identity, known, found.seq)))
        return answers

    def _answer(
        self, topic: Topic, identity: Identity | None, known: dict[Key, Feed], seq: int
    ) -> Feed | str:
        if identity is None:
            return topics.FORBIDDEN
        # These topics have the same content for all their readers, so one feed serves all.
        group = None if topic.kind in (topics.LOGS, topics.ACTIVITY) else identity.project_ids
        feed = known.get((topic.name, group))
        project_id = feed.project_id if feed is not None else topics.project_of(topic)
        if not topics.may_listen(topic, identity.project_ids, project_id):
            return topics.FORBIDDEN
        if feed is None:
            feed = self._open(topic, project_id, group, seq)
            if feed is None:
                return topics.UNREADABLE
            known[feed.key] = feed
        return feed

    def _open(
        self, topic: Topic, project_id: int | None, group: frozenset[int] | None, seq: int
    ) -> Feed | None:
        if topic.kind == topics.LOGS:
            return _open_log(topic, project_id)
        state = self._read(topic, project_id, group, seq) or {}
        return Feed(topic, project_id, group, state, seq, Window({seq: None}))


def _update(feed: Feed, state: State | None, seq: int) -> Update | None:
    after: State = state if state is not None else {}
    change = diff(feed.state, after)
    if not change and state is not None:
        return None
    if seq < feed.seq:
        # The database has been replaced, so event numbers restart, and listeners must too.
        return Update(feed, after, seq)
    frame = change_frame(feed.topic.name, seq, change, now_text())
    return Update(feed, after, seq, frame, is_gone=state is None)


def _reading(topic: Topic, project_id: int | None, seq: int) -> Reading | None:
    kind = topic_kinds().get(topic.kind)
    if kind is None:
        return overview_reader()(seq)
    return None if project_id is None else kind.read(topic.subject, project_id)


def is_touched(feed: Feed, event: Event) -> bool:
    """Return whether an event may change the feed's state; False means that it does not."""
    if event.kind.startswith(PRIVATE_KINDS):
        return False
    kind = topic_kinds().get(feed.topic.kind)
    return kind is None or kind.is_touched(Touch(event, feed.topic.subject, feed.project_id, feed.state))


def queue_of(overview: State) -> State:
    """Return the state of the topic `queue`, taken from that of the overview."""
    return {"queued": overview["queued"]}


def now_text() -> str:
    """Return the present time for frames, in UTC: 2026-01-31T12:00:00.000Z. Pages compute elapsed seconds from it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_touched_by(feed: Feed, events: Sequence[Event], is_all: bool) -> bool:
    return is_all or any(is_touched(feed, event) for event in events)


def _open_log(topic: Topic, project_id: int | None) -> Feed | None:
    """Return a new feed that follows a log; None if the log cannot be read, which is logged."""
    tail = log_tail()(topic.subject, topic.rank)
    try:
        tail.open()
        return Feed(topic, project_id, None, tail.state(), tail.seq, Window({tail.seq: None}), tail)
    except DatabaseError:
        # Not a fault of this log: the whole tick fails and is repeated.
        raise
    except Exception:
        logger.exception("%s cannot be read", topic.name)
        return None


def _log_updates(feeds: Sequence[Feed], events: Sequence[Event], *, is_all: bool = False) -> list[Update]:
    moved = {str(event.job_id) for event in events if event.job_id is not None}
    found = [
        _guarded_update(feed, feed.tail, is_all or feed.topic.subject in moved)
        for feed in feeds
        if feed.tail is not None
    ]
    return [update for update in found if update is not None]


def _guarded_update(feed: Feed, tail: Tail, has_moved: bool) -> Update | None:
    """Return what was appended to one log; None if nothing was, or if it cannot be read. An error is logged once and
    retried at the next tick; a DatabaseError is raised, because it fails the whole tick. `has_moved`: an event about
    its job occurred."""
    try:
        update = _log_update(feed, tail, has_moved)
    except DatabaseError:
        raise
    except Exception:
        if not feed.is_unreadable:
            logger.exception("%s cannot be read", feed.topic.name)
        feed.is_unreadable = True
        return None
    feed.is_unreadable = False
    return update


def _log_update(feed: Feed, tail: Tail, has_moved: bool) -> Update | None:
    batch = tail.poll(look_for_attempt=has_moved)
    if batch is None:
        return None
    if batch.is_fresh:
        return Update(feed, tail.state(), tail.seq)
    frame = change_frame(feed.topic.name, tail.seq, Change(batch.upserts, ()), now_text())
    return Update(feed, tail.state(), tail.seq, frame)


def _is_about_rights(events: Sequence[Event]) -> bool:
    return any(event.kind.startswith(ACCESS_KINDS) for event in events)
