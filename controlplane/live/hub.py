"""The hub: one per web process; follows the event log and writes to the process's own sockets and streams.

Once per tick it reads new events, computes each changed topic once per group of readers with equal rights,
encodes each frame once, and sends the same text to every listener. It uses neither Redis nor other web
processes.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from controlplane.live import topics
from controlplane.live.database_changes import database_changes
from controlplane.live.database_thread import DatabaseThread
from controlplane.live.feeds import Feed, Key, Reader, SubscribeRequest, TickResult, Update
from controlplane.live.frames import error_frame
from controlplane.live.identity import Credential, Identity, identify
from controlplane.live.listener import Listener
from controlplane.live.topics import Topic, parse_topic

logger = logging.getLogger(__name__)
T = TypeVar("T")

SIGNED_OUT, SLOW, STOPPING = 4401, 4408, 1012  # websocket close codes
TOPICS_MOST = 100  # per listener
DETAILS = {
    topics.FORBIDDEN: "There is no such topic that you may read.",
    topics.UNKNOWN: "Topics are overview, queue, activity, project:NAME, job:ID, job:ID:logs:RANK, dataset:ID"
    " and volume:ID.",
    topics.GONE: "It was deleted.",
    topics.UNREADABLE: "This log cannot be read now; the server's log has the cause.",
    "too_many_topics": f"One connection follows at most {TOPICS_MOST} topics.",
}


@dataclass(frozen=True, slots=True)
class Pace:
    """The hub's periods, in seconds unless stated otherwise."""

    # Between reads of the database, while events occur or logs are followed.
    busy: float = 0.05
    quiet: float = 0.1
    # How long after the last event reads remain frequent, because events come in groups.
    busy_for: float = 5.0
    # The largest share of the time spent on reading, so that a large instance is not slowed down by its feed.
    most_share: float = 0.2
    # Between checks of all listeners' rights, so that a lost right takes effect within about a second.
    recheck: float = 1.0
    # A listener that accepts no data for this long is disconnected, because its connection is probably dead.
    blocked: float = 10.0
    # The pause after a failed read, because a database that restarts needs a moment.
    retry: float = 1.0
    # How long a topic without listeners is kept, for clients that reconnect.
    keep: float = 30.0


class Hub:
    """The listeners of a web process, the feeds that they follow, and the task that reads changes from the database.
    Call it on the event loop; the database is read on the hub's own thread."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self._thread = DatabaseThread("live")
        self._reader, self._changes = Reader(), database_changes()
        self._feeds: dict[Key, Feed] = {}
        # By listener: topic -> its feed, None until the subscription is answered.
        self._listeners: dict[Listener, dict[str, Feed | None]] = {}
        self._identities: defaultdict[Identity, set[Listener]] = defaultdict(set)
        self._requests: list[SubscribeRequest] = []
        self._known: dict[Credential, tuple[float, Identity | None]] = {}
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last_event = self._last_recheck = float("-inf")

    async def identify(self, credential: Credential) -> Identity | None:
        """Return the identity of a credential; None if it is invalid. The answer is kept for `pace.recheck` seconds,
        because many clients reconnect at once after a restart."""
        now = time.monotonic()
        found = self._known.get(credential)
        if found is None or now - found[0] > self.pace.recheck:
            # The size is bounded because wrong tokens are cached too.
            if len(self._known) > 10_000:
                self._known.clear()
            found = self._known[credential] = (now, await self.in_thread(identify, credential))
        return found[1]

    async def in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Run `work` on the hub's database thread; return its result or raise its error."""
        return await self._thread.run(work, *arguments)

    def attach(self, listener: Listener) -> None:
        """Add a listener without subscriptions and start sending to it. `detach` it when its connection ends."""
        self._listeners[listener] = {}
        self._identities[listener.identity].add(listener)
        listener.start()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="live-hub")
        self._work.set()

    def detach(self, listener: Listener) -> None:
        """Remove a listener whose connection has ended. Safe to repeat."""
        listener.stop()
        self._identities[listener.identity].discard(listener)
        if not self._identities[listener.identity]:
            del self._identities[listener.identity]
        for feed in self._listeners.pop(listener, {}).values():
            self._leave(feed, listener)

    def subscribe(self, listener: Listener, name: object, since: int | None) -> None:
        """Subscribe a listener to a topic; the next tick sends the changes after event number `since`, or the
        complete state if `since` is None or too old. An unknown or forbidden topic, or one too many, is answered with
        an error frame."""
        topic, followed = parse_topic(name), self._listeners[listener]
        if topic is None:
            listener.offer(error_frame(name, topics.UNKNOWN, DETAILS[topics.UNKNOWN]))
        elif len(followed) >= TOPICS_MOST and topic.name not in followed:
            listener.offer(error_frame(name, "too_many_topics", DETAILS["too_many_topics"]))
        else:
            self._ask(listener, topic, since)

    def unsubscribe(self, listener: Listener, name: str) -> None:
        """End a listener's subscription to a topic. Does nothing without one."""
        listener.drop(name)
        self._leave(self._listeners[listener].pop(name, None), listener)

    def let_go(self, listener: Listener, code: int, reason: str) -> None:
        """Remove a listener and have its connection closed; `code` and `reason` are those of a websocket's close."""
        self.detach(listener)
        listener.on_end(code, reason)

    async def close(self) -> None:
        """Disconnect all listeners, and end the hub's task and its thread. The hub cannot be used afterwards."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for listener in list(self._listeners):
            self.let_go(listener, STOPPING, "the server is stopping")
        self._thread.shutdown()
        self._changes.close()

    def _ask(self, listener: Listener, topic: Topic, since: int | None) -> None:
        # Frames of the earlier subscription must not follow the state that answers the new one.
        listener.drop(topic.name)
        self._leave(self._listeners[listener].get(topic.name), listener)
        self._listeners[listener][topic.name] = None
        self._requests.append(SubscribeRequest(listener, topic, since))
        self._work.set()

    def _leave(self, feed: Feed | None, listener: Listener) -> None:
        if feed is None:
            return
        feed.listeners.pop(listener, None)
        if not feed.listeners:
            feed.empty_since = time.monotonic()

    async def _run(self) -> None:
        while True:
            pause = 0.0
            if self._listeners or self._feeds:
                began = time.monotonic()
                has_looked = await self._has_looked(began)
                pause = self._pause(began) if has_looked else self.pace.retry
            await self._wait(pause)

    async def _has_looked(self, now: float) -> bool:
        """Run one tick; return False if it failed. Listeners then keep their state, and the next tick continues after
        the last event that was read."""
        try:
            await self._tick(now)
        except Exception:
            logger.exception("the live feed could not look at the database")
            return False
        return True

    async def _wait(self, pause: float) -> None:
        """Wait `pause` seconds or until there is work for the next tick; without listeners and feeds, only for work."""
        try:
            async with asyncio.timeout(pause if self._listeners or self._feeds else None):
                await self._work.wait()
        except TimeoutError:
            # The time for the next tick has come.
            pass
        self._work.clear()

    def _pause(self, began: float) -> float:
        now = time.monotonic()
        is_busy = now - self._last_event < self.pace.busy_for or self._follows_logs()
        wanted = self.pace.busy if is_busy else self.pace.quiet
        return max(wanted, (now - began) * (1 / self.pace.most_share - 1))

    def _follows_logs(self) -> bool:
        return any(feed.tail is not None for feed in self._feeds.values())

    async def _tick(self, now: float) -> None:
        is_recheck_due = now - self._last_recheck >= self.pace.recheck
        # Asked first: a commit after it is found by this tick or by the next.
        is_announced = self._changes.has_any()
        if not (is_announced or self._requests or is_recheck_due or self._follows_logs()):
            return
        requests, self._requests = self._wanted_asks(), []
        # Copied, because the event loop continues while the thread reads.
        identities = list(self._identities)
        feeds = list(self._feeds.values())
        try:
            found = await self.in_thread(self._look, feeds, requests, identities, is_recheck_due)
        # The read was cancelled or failed, so its requests are kept for the next tick.
        except BaseException:
            self._changes.forget()
            self._requests = requests + self._requests
            raise
        if found.had_events:
            self._last_event = now
            if not is_announced:
                self._changes.note_missed()
        if is_recheck_due:
            self._last_recheck = now
            self._sweep(now)
        self._apply(found)

    def _look(
        self,
        feeds: Sequence[Feed],
        requests: Sequence[SubscribeRequest],
        identities: Sequence[Identity],
        is_recheck_due: bool,
    ) -> TickResult:
        """Read what changed. Runs on the hub's thread."""
        self._changes.prepare()
        return self._reader.look(feeds, requests, identities, is_recheck_due=is_recheck_due)

    def _wanted_asks(self) -> list[SubscribeRequest]:
        """Return the pending requests that are still wanted: the last one of each listener for each topic."""
        last = {(ask.listener, ask.topic.name): ask for ask in self._requests}
        waited = self._listeners
        return [
            # `self` as the default tells an unsubscribed topic from an unanswered one, which is None.
            ask
            for (one, name), ask in last.items()
            if one in waited and waited[one].get(name, self) is None
        ]

    def _apply(self, found: TickResult) -> None:
        """Send the results of a tick to the listeners. Changed rights come first, so that no listener receives a
        frame that it may no longer see."""
        self._apply_rights(found.identities)
        for feed in self._feeds.values():
            if feed.tail is None:
                # Logs are numbered by their own tails, not by events.
                feed.seq = found.seq
        for update in found.updates:
            self._publish(update)
        for feed in self._feeds.values():
            # Topics without a change too: clients may reconnect with this number and miss nothing.
            feed.window.pass_by(feed.seq)
        for ask, answer in found.answers:
            self._place(ask, answer)

    def _apply_rights(self, identities: dict[Identity, Identity | None]) -> None:
        # `still_valid` returns the same object for an identity with unchanged rights.
        changed = {old: new for old, new in identities.items() if old is not new}
        if not changed:
            return
        # The cached identities have the old rights, so they are looked up again.
        self._known.clear()
        for old, new in changed.items():
            for listener in list(self._identities.get(old, ())):
                if new is None:
                    self.let_go(listener, SIGNED_OUT, "signed out")
                else:
                    self._identities[old].discard(listener)
                    self._identities[new].add(listener)
                    listener.identity = new
                    self._check_topics(listener, new)
            if not self._identities.get(old):
                self._identities.pop(old, None)

    def _check_topics(self, listener: Listener, identity: Identity) -> None:
        """Apply changed rights to a listener: end the subscriptions that it may no longer have, and send complete
        states for the others."""
        for name, feed in list(self._listeners[listener].items()):
            if feed is None:
                # The pending request will be answered under the new rights.
                continue
            if not topics.may_listen(feed.topic, identity.project_ids, feed.project_id):
                self._refuse(listener, name, topics.FORBIDDEN)
            elif feed.topic.kind != topics.LOGS and feed.project_ids != identity.project_ids:
                self._ask(listener, feed.topic, None)

    def _refuse(self, listener: Listener, name: str, code: str) -> None:
        if listener in self._listeners:
            self.unsubscribe(listener, name)
            listener.offer(error_frame(name, code, DETAILS[code]))

    def _publish(self, update: Update) -> None:
        feed = update.feed
        feed.state, feed.seq = update.state, update.seq
        feed.forget_fresh()
        if update.frame is None:
            feed.window.restart(update.seq)
        else:
            feed.window.add(update.seq, update.frame)
        frame = update.frame or feed.fresh()
        for listener in list(feed.listeners):
            listener.offer(frame)
        if update.is_gone:
            self._bury(feed)

    def _bury(self, feed: Feed) -> None:
        """Remove the feed of a deleted object. Its listeners receive what is queued, then the error `gone`."""
        name = feed.topic.name
        for listener in list(feed.listeners):
            # Not `unsubscribe`, which would also drop the queued change that empties the topic.
            listener.fresh.pop(name, None)
            self._leave(self._listeners[listener].pop(name, None), listener)
            listener.offer(error_frame(name, topics.GONE, DETAILS[topics.GONE]))
        self._feeds.pop(feed.key, None)

    def _place(self, ask: SubscribeRequest, answer: Feed | str) -> None:
        listener, name = ask.listener, ask.topic.name
        followed = self._listeners.get(listener)
        if followed is None or followed.get(name, self) is not None:
            # The listener has disconnected, unsubscribed or subscribed again meanwhile.
            return
        if isinstance(answer, str):
            self._refuse(listener, name, answer)
            return
        feed = self._feeds.setdefault(answer.key, answer)
        feed.listeners[listener] = None
        feed.empty_since = None
        followed[name] = feed
        listener.fresh[name] = feed.fresh
        replay = None if ask.since is None else feed.window.since(ask.since)
        for frame in [feed.fresh()] if replay is None else replay:
            listener.offer(frame)

    def _sweep(self, now: float) -> None:
        """Disconnect listeners that have accepted no data for `pace.blocked` seconds, and drop feeds that have had no
        listener for `pace.keep` seconds. `now`: time.monotonic()."""
        for listener in list(self._listeners):
            if listener.blocked_since is not None and now - listener.blocked_since > self.pace.blocked:
                self.let_go(listener, SLOW, "too slow")
        for key, feed in list(self._feeds.items()):
            if (
                not feed.listeners
                and feed.empty_since is not None
                and now - feed.empty_since > self.pace.keep
            ):
                del self._feeds[key]


_hub: Hub | None = None


def hub() -> Hub:
    """Return this process's hub, creating it on first use."""
    global _hub
    if _hub is None:
        _hub = Hub()
    return _hub


async def close_hub() -> None:
    """Close this process's hub if it exists; the next `hub()` creates a new one."""
    global _hub
    if _hub is not None:
        closing, _hub = _hub, None
        await closing.close()
