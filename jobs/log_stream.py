"""GET /api/v1/jobs/<id>/logs?follow=true: a pod's log as server-sent events, until the job has ended.

`event: line` carries one line with the byte offset to resume from, `event: gap` marks missing output, and
`event: end` carries the job's state and exit code. Without `attempt`, the stream follows a restarted job into
its next attempt, announced by `event: attempt`. Lines come from the log store, never from an engine.
"""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

import orjson
from django.conf import settings
from django.utils import timezone

from controlplane.access import NotVisible
from controlplane.http.throttle import Slots, TooManyAtOnce
from controlplane.live.asgi import Receive, Scope, Send, header, problem, query
from controlplane.live.client import Refused, sign_in
from controlplane.live.identity import Identity, still_valid
from controlplane.live.shared import SharedReads
from controlplane.live.watch import STREAM_HEADERS, challenge, chunk, refuse_unknown, until_left
from controlplane.logstore.reader import LogLine, log_path, read_page, tail
from jobs.access import job_for
from jobs.lifecycle import is_final
from jobs.log_ranks import default_log_rank
from jobs.log_tail import gap_record, line_record, size_of
from jobs.models import Job

POLL_SECONDS = 0.1
# Interval between reads of the job's state while its log does not grow, because each is a query.
LOOK_SECONDS = 1.0
# A shorter interval for the first SOON_MOST reads: the first line, or the job's end, is likely soon.
SOON_SECONDS, SOON_MOST = 0.2, 50
# How long a stream waits for the last lines of a worker that has left before it switches to another pod: the
# engine delivers them after the change of members is known.
LOG_END_SECONDS = 10.0
HEARTBEAT_SECONDS = 10.0
PAGE_LINES = 1000
STREAMS_OF_USER, STREAMS_OF_JOB = 64, 200
TOO_MANY = f"A user follows at most {STREAMS_OF_USER} logs, a job has at most {STREAMS_OF_JOB} followers; close some."
TAIL_MOST = 100_000
FIELDS = frozenset({"rank", "attempt", "offset", "tail", "search", "follow", "limit", "fields"})
PATH = re.compile(r"/api/v1/jobs/(?P<job>[^/]+)/logs/?")
_RESUME = re.compile(r"(?P<attempt>\d{1,9})-(?P<offset>\d{1,15})(-(?P<rank>\d{1,9}))?")
_reads = SharedReads("log-streams")
_streams_of_user, _streams_of_job = Slots(STREAMS_OF_USER), Slots(STREAMS_OF_JOB)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The output that a client requests. `attempt` None: the newest attempt and later ones. `rank` None: the pods of
    jobs.log_ranks, one after the other. `offset`: the byte to start from; `tail`: start with the last lines instead,
    None if not requested; `search`: only lines that contain it. `first_rank`: where a stream without `rank` resumes
    after a broken connection."""

    job_id: str
    rank: int | None
    attempt: int | None
    offset: int
    tail: int | None
    search: str | None
    first_rank: int | None = None


@dataclass(frozen=True, slots=True)
class LogState:
    """The part of a job's state that decides whether its log can still grow. `rank`: whose log is shown by
    default (jobs.log_ranks)."""

    state: str
    attempt: int
    exit_code: int | None
    rank: int


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one followed log (ASGI). Answers 404 for a job that the user may not see, 400, 401 or 405 for other
    bad requests, and 429 beyond the limits of streams per user and per job."""
    try:
        if scope["method"] != "GET":
            raise Refused(405, "method_not_allowed", "Use GET.")
        identity = await sign_in(scope)
        wanted = read_wanted(scope)
        await _may_read(identity, wanted.job_id)
    except NotVisible as missing:
        await problem(send, 404, "not_found", str(missing))
        return
    except Refused as refused:
        await problem(send, refused.status, refused.code, refused.detail, challenge(refused))
        return
    try:
        with _streams_of_job.hold(wanted.job_id), _streams_of_user.hold(identity.user.pk):
            await _serve(wanted, identity, receive, send)
    except TooManyAtOnce:
        await problem(send, 429, "too_many_log_streams", TOO_MANY, [(b"retry-after", b"5")])


async def _serve(wanted: Wanted, identity: Identity, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    # Without a heartbeat, a client that left would be detected only when the next line is sent.
    left = asyncio.create_task(until_left(receive))
    writing = asyncio.create_task(_write(Follower(wanted), identity, send))
    try:
        await asyncio.wait((left, writing), return_when=asyncio.FIRST_COMPLETED)
    finally:
        left.cancel()
        writing.cancel()
    if writing.done() and not writing.cancelled():
        writing.result()
        await send({"type": "http.response.body", "body": b""})


def read_wanted(scope: Scope) -> Wanted:
    """Return the request parsed from path, query and the Last-Event-ID header, from which a client resumes.
    Raises Refused (400) for an unknown field or a malformed number."""
    fields = query(scope)
    refuse_unknown(fields, FIELDS)
    match = PATH.fullmatch(scope["path"])
    attempt, offset = _number(fields, "attempt"), _number(fields, "offset")
    resumed = _RESUME.fullmatch(header(scope, b"last-event-id") or "")
    first_rank = None
    if resumed is not None:
        # On reconnect a browser repeats the first URL; Last-Event-ID holds the current position.
        attempt, offset = attempt or int(resumed["attempt"]), int(resumed["offset"])
        first_rank = int(resumed["rank"] or 0)
    lines = None if offset is not None else _number(fields, "tail")
    return Wanted(
        _canonical(match["job"]) if match else "",
        _number(fields, "rank"),
        attempt,
        offset or 0,
        None if lines is None else min(lines, TAIL_MOST),
        fields.get("search") or None,
        first_rank,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a log as server-sent events, and the byte offset of the next part. `is_complete`: the pod will write
    no more."""

    text: str
    next_offset: int
    is_complete: bool


def read_part(path: Path, attempt_rank: str, offset: int, lines: int | None, search: str | None) -> Part:
    """Return the page of a log at `offset` (bytes) or, if `lines` is given, its last lines, as server-sent events.
    `search`: only lines that contain it, None for all. `attempt_rank`: prefix of the event ids, such as `3-0`."""
    page = tail(path, lines) if lines is not None else read_page(path, offset, PAGE_LINES, search)
    gaps = [_event("gap", gap_record(gap) | {"offset": page.next_offset}) for gap in page.gaps]
    text = "".join([*(_line_event(attempt_rank, line) for line in page.lines), *gaps])
    return Part(text, page.next_offset, page.complete)


def close() -> None:
    """Stop the thread that reads logs."""
    _reads.shutdown()


class Follower:
    """Reads the growing log of `wanted`. A text from `events` holds complete server-sent events."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self._attempt = wanted.attempt or 0
        self._rank = wanted.first_rank if wanted.rank is None else wanted.rank
        self._offset = wanted.offset
        self._is_first = True
        self._is_complete = False
        self._soon = 0
        self._quiet_since: float | None = None

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield new output as it appears, and "" regularly while there is none. Ends after the `end` event, when
        the job has ended and its log is read, or the job is deleted."""
        while True:
            job = self.wanted.job_id, self.wanted.attempt
            standing = await _reads.read(("job", *job), SOON_SECONDS / 2, _log_state, *job)
            if standing is None:
                yield _event("end", {"state": None, "exit_code": None})
                return
            if self._must_move_on(standing):
                yield self._next_attempt(standing.attempt)
            self._choose_rank(standing)
            async for text in self._drain():
                yield text
            if self._is_over(standing):
                yield _event("end", {"state": standing.state, "exit_code": standing.exit_code})
                return
            async for text in self._wait_for_growth():
                yield text

    async def _drain(self) -> AsyncGenerator[str, None]:
        """Yield the pages from the current offset to the present end of the log."""
        while True:
            part = await self._next_part()
            is_more = part.next_offset != self._offset
            self._offset, self._is_complete = part.next_offset, part.is_complete
            yield part.text
            if not is_more or part.is_complete:
                return

    async def _wait_for_growth(self) -> AsyncGenerator[str, None]:
        """Wait until the log has grown or it is time to read the job's state again; yields "" meanwhile."""
        # Back off, so that a silent job is not read five times a second forever.
        is_soon = (self._is_complete or self._offset == 0) and self._soon < SOON_MOST
        self._soon = self._soon + 1 if is_soon else self._soon
        for _ in range(round((SOON_SECONDS if is_soon else LOOK_SECONDS) / POLL_SECONDS)):
            await asyncio.sleep(POLL_SECONDS)
            if size_of(self._path) > self._offset:
                self._soon = 0
                return
            yield ""

    async def _next_part(self) -> "Part":
        """Return the next part of the log; followers at the same offset share one read."""
        lines = self.wanted.tail if self._is_first else None
        self._is_first = False
        page = (self._path, f"{self._attempt}-{self._rank}", self._offset, lines, self.wanted.search)
        return await _reads.read(page, POLL_SECONDS / 2, read_part, *page)

    def _must_move_on(self, standing: LogState) -> bool:
        return self.wanted.attempt is None and standing.attempt != self._attempt

    def _next_attempt(self, attempt: int) -> str:
        """Switch to a newer attempt's log from its beginning and return its `attempt` event. For the first attempt
        that is read, return "" and keep the client's offset."""
        is_first, self._attempt = self._attempt == 0, attempt
        if is_first:
            return ""
        self._rank = self.wanted.rank
        self._offset, self._is_complete, self._quiet_since = 0, False, None
        return _event("attempt", {"attempt": attempt})

    def _choose_rank(self, standing: LogState) -> None:
        """If the client requested no rank, switch to the pod whose log is shown by default now, once all output
        of the previous one has been sent."""
        if self._rank is None:
            self._rank = standing.rank
        elif not self._is_behind(standing):
            self._quiet_since = None
        elif self._is_read_completely():
            self._rank, self._offset, self._is_complete = standing.rank, 0, False
            self._quiet_since = None

    def _is_read_completely(self) -> bool:
        """Return whether the log is complete, or nothing was added for LOG_END_SECONDS, in which case its end
        may be lost."""
        now = time.monotonic()
        if size_of(self._path) > self._offset:
            self._quiet_since = now
            return False
        self._quiet_since = self._quiet_since or now
        return self._is_complete or now - self._quiet_since >= LOG_END_SECONDS

    def _is_behind(self, standing: LogState) -> bool:
        return self.wanted.rank is None and self._rank != standing.rank

    def _is_over(self, standing: LogState) -> bool:
        is_ended = is_final(standing.state)
        if self.wanted.attempt is not None and self.wanted.attempt < standing.attempt:
            # The log of an earlier attempt does not grow.
            is_ended = True
        return (
            is_ended
            and not self._is_behind(standing)
            and (self._is_complete or size_of(self._path) <= self._offset)
        )

    @property
    def _path(self) -> Path:
        return log_path(settings.LOG_DIR, self.wanted.job_id, self._attempt, self._rank or 0)


async def _write(follower: Follower, identity: Identity, send: Send) -> None:
    """Send the follower's events to the client, and a comment after HEARTBEAT_SECONDS of silence. Returns when
    the events end, the client leaves or its access is lost."""
    loop = asyncio.get_running_loop()
    written = checked = loop.time()
    async with aclosing(follower.events()) as events:
        async for text in events:
            now = loop.time()
            if now - checked > LOOK_SECONDS:
                checked = now
                try:
                    await _may_read(identity, follower.wanted.job_id)
                except NotVisible:
                    return
            if not text and now - written < HEARTBEAT_SECONDS:
                continue
            written = now
            try:
                await send(chunk(text or ": alive\n\n"))
            except OSError:
                # The client has left.
                return


def _line_event(attempt_rank: str, line: LogLine) -> str:
    attempt, rank = attempt_rank.split("-")
    mark = f"{attempt}-{line.next_offset}{'' if rank == '0' else f'-{rank}'}"
    return _event("line", line_record(line) | {"offset": line.next_offset}, mark)


def _event(name: str, data: dict[str, object], mark: str = "") -> str:
    identifier = f"id: {mark}\n" if mark else ""
    return f"event: {name}\n{identifier}data: {orjson.dumps(data, option=orjson.OPT_UTC_Z).decode()}\n\n"


def _number(fields: dict[str, str], name: str) -> int | None:
    text = fields.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise Refused(400, "not_a_number", f"{name} is a whole number, 0 or more.")
    return int(text)


async def _may_read(identity: Identity, job_id: str) -> None:
    """Raise NotVisible unless the identity may read the job's log. Concurrent streams of an identity share
    the check."""
    await _reads.read((identity, job_id), LOOK_SECONDS / 2, _require_visible, identity, job_id)


def _require_visible(identity: Identity, job_id: str) -> None:
    now = still_valid([identity], timezone.now())[identity]
    if now is None:
        raise NotVisible("The credential has ended.")
    job_for(now.actor, job_id)


def _canonical(job_id: str) -> str:
    """Return a job's id as its log directory spells it. A text that is no UUID is returned unchanged and matches
    no job."""
    try:
        return str(uuid.UUID(job_id))
    except ValueError:
        return job_id


def _log_state(job_id: str, attempt: int | None) -> LogState | None:
    job = Job.objects.filter(pk=uuid.UUID(job_id)).only("kind", "state", "attempt", "exit_code").first()
    if job is None:
        return None
    return LogState(job.state, job.attempt, job.exit_code, default_log_rank(job, attempt or job.attempt))
