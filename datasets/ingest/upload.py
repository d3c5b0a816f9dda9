"""A sink that sends contents to a server over HTTP. Each worker process has its own connection."""

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from controlplane.http_client import (
    FINAL,
    LATER,
    SAID_SECONDS,
    open_connection,
    retry_delay,
    waits_words,
)
from datasets.ingest.packs import CONTENT_MOST_BYTES, make_pack
from datasets.ingest.reader import Content, FileChanged
from datasets.ingest.worker import Say, SinkSpec, silent

PART_BYTES = 16 << 20
# Larger bodies are sent in pieces of this size: a slow line still moves some of them, a server that reads
# nothing moves none.
PIECE_BYTES = 64 << 10
TRIES = 6
TIMEOUT_SECONDS = 300.0
# 408: the server ended a slow request, but kept the part that had arrived.
_LATER = LATER | {408}
# Code of the 409 of a lake that removes old content.
_BUSY = "in_use"
HTTP_CODE = "http_"


class UploadRefused(Exception):
    """The server refused the content; the message is its reason. `code`: HTTP_CODE and its status, 503 if it cannot be
    reached; a worker process passes it on (datasets.ingest.worker.WorkerFailed)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.code = f"{HTTP_CODE}{status}"


class HttpSink:
    """Sends contents to one dataset of a server; implements datasets.ingest.reader.Sink. `say` gets a line, possibly
    from another thread, when a request has to wait."""

    most_in_memory_bytes = CONTENT_MOST_BYTES

    def __init__(self, url: str, headers: Mapping[str, str], dataset: str, say: Say = silent) -> None:
        self._parts, self._say = urlsplit(url), say
        self._headers = {"Content-Type": "application/octet-stream", "Accept": "application/json", **headers}
        self._path = f"{self._parts.path.rstrip('/')}/api/v1/datasets/{dataset}/content/"
        self._connection: http.client.HTTPConnection | None = None
        # When the request under way last sent something, on the monotonic clock: a slow line still sends, a server that
        # reads nothing makes it stop.
        self._moved_at = 0.0

    def lacking(self, digests: Sequence[bytes]) -> set[bytes]:
        answer = self._ask("POST", "lacking", b"".join(digests))
        return {digests[place] for place in answer["lacking"]}

    def put_contents(self, contents: Sequence[Content]) -> None:
        self._ask("PUT", "packs", make_pack([(content.digest, content.data) for content in contents]))

    def put_file(self, digest: bytes, path: bytes, size_bytes: int, mtime_ns: int) -> None:
        address = f"parts/{digest.hex()}"
        arrived = int(self._ask("GET", address, b"")["size_bytes"])
        # All bytes arrived, but the content was not completed: sending one part again completes it.
        if arrived >= size_bytes:
            arrived = 0
        # O_NOFOLLOW: a link may have replaced the file since the walk.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            while arrived < size_bytes:
                part = os.pread(descriptor, PART_BYTES, arrived)
                if not part:
                    raise FileChanged
                arrived = self._put_part(address, arrived, part, size_bytes)
        finally:
            os.close(descriptor)

    def flush(self) -> None:
        """Do nothing: the server answers an upload only when its content is on disk."""

    def put_manifest(self, stored: bytes) -> tuple[str, int]:
        """Send an encoded manifest; return its hash and the number of contents that the lake lacks. Raises
        UploadRefused if the server refuses it or does not answer."""
        answer = self._ask("PUT", "manifests", stored)
        return str(answer["manifest"]), int(answer["lacking"])

    def _put_part(self, address: str, offset: int, part: bytes, size: int) -> int:
        answer = self._ask("PUT", f"{address}?offset={offset}&size={size}", part)
        arrived = int(answer["size_bytes"])
        if arrived <= offset:
            raise UploadRefused(f"The server accepted no data at byte {offset}; try again.", 500)
        return arrived

    def _ask(self, method: str, address: str, body: bytes) -> Any:
        """Send a request to `address`, relative to the dataset, and return the answer's JSON. Retries while the
        server asks to wait or connections break; every request is safe to repeat. Raises UploadRefused for any
        other error, and after TRIES tries."""
        failure, asked, status = "", None, 503
        for attempt in range(TRIES):
            if attempt:
                self._pause(failure, retry_delay(asked, attempt), attempt)
            try:
                status, asked, raw = self._exchange(method, address, body)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                asked, status = None, 503
                failure = f"{self._parts.netloc} cannot be reached: {str(error) or type(error).__name__}."
                continue
            if status < 300:
                return json.loads(raw)
            failure = _said(raw, "detail") or f"The server answered {status}."
            code = _said(raw, "code")
            if code in FINAL or (status not in _LATER and code != _BUSY):
                break
        self.close()
        raise UploadRefused(failure, status)

    def _pause(self, failure: str, seconds: float, attempt: int) -> None:
        # Short pauses are announced too: together they last longer than a user waits without a word.
        if seconds >= SAID_SECONDS or attempt > 1:
            self._say(waits_words(failure, seconds, attempt + 1, TRIES))
        if seconds >= SAID_SECONDS:
            # The server closes idle connections, which would count as a failed attempt.
            self.close()
        time.sleep(seconds)

    def _exchange(self, method: str, address: str, body: bytes) -> tuple[int, str | None, bytes]:
        if self._connection is None:
            self._connection = open_connection(self._parts, TIMEOUT_SECONDS)
        large = len(body) > PIECE_BYTES
        headers = {**self._headers, "Content-Length": str(len(body))} if large else self._headers
        with self._announced():
            pieces = self._pieces(body) if large else body
            self._connection.request(method, self._path + address, body=pieces, headers=headers)
            answer = self._connection.getresponse()
            return answer.status, answer.headers.get("Retry-After"), answer.read()

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """Context manager for a request: reports a wait to the user if no answer has come SAID_SECONDS after the last
        piece was sent."""
        self._moved_at, answered = time.monotonic(), threading.Event()
        threading.Thread(target=self._watch, args=(answered,), daemon=True).start()
        try:
            yield
        finally:
            answered.set()

    def _pieces(self, body: bytes) -> Iterator[memoryview]:
        for at in range(0, len(body), PIECE_BYTES):
            self._moved_at = time.monotonic()
            yield memoryview(body)[at : at + PIECE_BYTES]
        self._moved_at = time.monotonic()

    def _watch(self, answered: threading.Event) -> None:
        while (left := self._moved_at + SAID_SECONDS - time.monotonic()) > 0:
            if answered.wait(left):
                return
        limits = f"for {SAID_SECONDS:g} s; waiting, at most {TIMEOUT_SECONDS:.0f} s."
        self._say(f"{self._parts.netloc} has not answered {limits}")

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def http_sink(url: str, headers: dict[str, str], dataset: str, *, say: Say = silent) -> HttpSink:
    """Open the sink that `sink_of_server` describes; called in the worker process. `say` receives messages for
    the user."""
    return HttpSink(url, headers, dataset, say)


def sink_of_server(url: str, headers: Mapping[str, str], dataset: str) -> SinkSpec:
    """Return the description of a sink that sends contents to a dataset (id) of the server at `url`, with these
    HTTP headers. Worker processes open it with `http_sink`."""
    return f"{__name__}:http_sink", (url, dict(headers), dataset)


def _said(raw: bytes, field: str) -> str:
    """Return a field of an error response in problem+json (`raw`); "" if the response is not one."""
    try:
        return str(json.loads(raw)[field])
    except (ValueError, KeyError, TypeError):
        return ""
