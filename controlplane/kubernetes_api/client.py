"""Requests to one API server: JSON as plain dicts over the official ApiClient, rate limited, each with a
time-out.

Retried are requests that were never sent or that the server deferred (429, or 5xx with Retry-After);
repeatable ones also after a lost connection or another 5xx. A create is not repeatable: its caller repeats
it, and reads the object on 409. Never retried: requests that timed out, and those that the server passes on
to a service.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

import orjson
from kubernetes.client import ApiClient, ApiException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from controlplane.kubernetes_api.credentials import Access
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from controlplane.kubernetes_api.kubeconfig import without_token
from controlplane.kubernetes_api.names import FIELD_MANAGER
from controlplane.kubernetes_api.rate_limiter import CREATE, READ, URGENT, TokenBucket
from controlplane.remote_errors import Unreachable

CONNECT_SECONDS = 5.0
TRIES = 8
RETRYING_SECONDS = 30.0
# The first and the longest back-off in seconds; doubled with every try, and random (full jitter) so that
# requests that failed together do not return together.
_BACKOFF_SECONDS = (0.05, 2.0)
_JSON = "application/json"


class Stream(Iterator[bytes]):
    """The lines of a streamed response, as bytes. `abort` ends it from another thread. Iteration raises Unreachable
    if the connection fails, and may do so after `abort`."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        self._response = response
        self._lines = _lines_of(response)

    def __next__(self) -> bytes:
        try:
            return next(self._lines)
        except (HTTPError, OSError, ValueError) as error:
            raise Unreachable(f"The stream was cut: {error}") from error

    def abort(self) -> None:
        try:
            self._response.shutdown()
        except (OSError, ValueError, RuntimeError):
            # The stream has already ended.
            self._response.close()


class Client:
    """The API of one cluster. Thread-safe; methods block. `calls` counts the requests sent, by (verb, resource).
    `retry_seconds`: no retry begins later than this after the first try. Unless stated otherwise, methods raise
    ApiError if the server refuses the request, Unreachable if it does not answer or keeps answering 5xx or 429,
    Refused if the credentials give no token."""

    def __init__(
        self, access: Access, bucket: TokenBucket | None = None, *, retry_seconds: float = RETRYING_SECONDS
    ) -> None:
        self.access = access
        self._retry_seconds = retry_seconds
        self.bucket = bucket or TokenBucket()
        self.calls: Counter[tuple[str, str]] = Counter()
        # The last response's Date header, and when it arrived (monotonic clock).
        self._dated: tuple[str, float] | None = None
        # The credential headers of the last request, which are removed from messages of errors.
        self._credentials: Mapping[str, str] = {}
        self._counting = threading.Lock()
        self._api = ApiClient(access.configuration())
        # The official client loads TLS keys only from files, for every new connection, so the context is passed
        # directly.
        if access.tls is not None:
            self._api.rest_client.pool_manager.connection_pool_kw["ssl_context"] = access.tls

    def get(
        self, path: str, query: Mapping[str, str] = {}, *, timeout_seconds: float = 10, tries: int = TRIES
    ) -> Any:
        return self._call("GET", path, query, priority=READ, timeout_seconds=timeout_seconds, tries=tries)

    def find(
        self, path: str, query: Mapping[str, str] = {}, *, timeout_seconds: float = 10, tries: int = TRIES
    ) -> dict[str, Any] | None:
        """Return what `get` returns; None if the server answers 404."""
        try:
            found: dict[str, Any] = self.get(path, query, timeout_seconds=timeout_seconds, tries=tries)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return found

    def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> Any:
        """Create an object and return it; with `dry_run` the server only validates it. Raise ApiError 409 if the name
        is taken, perhaps by an earlier try of this call whose response was lost."""
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return self._call("POST", path, query, body, priority=CREATE, is_repeatable=False)

    def apply(self, path: str, body: Mapping[str, Any]) -> Any:
        """Apply an object server-side and return it; an absent one is created. Takes the fields of `body` over from
        other field managers."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._call("PATCH", path, query, body, "application/apply-patch+yaml", priority=CREATE)

    def merge(self, path: str, body: Mapping[str, Any]) -> Any:
        """Apply a JSON merge patch to an existing object and return the patched object. Raise ApiError 404 if it is
        absent."""
        query = {"fieldManager": FIELD_MANAGER}
        return self._call("PATCH", path, query, body, "application/merge-patch+json", priority=URGENT)

    def remove_finalizer(self, path: str, finalizer: str, *, uid: str) -> Any | None:
        """Remove one finalizer of an object of a built-in kind, and return the patched object; None if there is no
        object with this `uid`. Finalizers that others add meanwhile are kept."""
        query = {"fieldManager": FIELD_MANAGER}
        body = {"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}}
        content_type = "application/strategic-merge-patch+json"
        try:
            return self._call("PATCH", path, query, body, content_type, priority=URGENT)
        except ApiError as error:
            causes = error.details.get("causes") or ()
            # To an object of the same name the patch would give another uid, which is invalid.
            if error.status == 404 or any(cause.get("field") == "metadata.uid" for cause in causes):
                return None
            raise

    def delete(self, path: str, *, grace_seconds: int | None = None, uid: str | None = None) -> Any | None:
        """Delete an object, and its dependents in the background. Return it as it is being deleted, or a Status; None
        if it is absent. `grace_seconds` None: the object's own. Raise ApiError 409 if it has another uid than `uid`."""
        body: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        try:
            return self._call("DELETE", path, {}, body, priority=URGENT)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    @contextmanager
    def stream(
        self, path: str, query: Mapping[str, str] = {}, *, read_timeout_seconds: float
    ) -> Generator[Stream]:
        """Context manager that opens a watch or a followed log. `read_timeout_seconds`: the longest time without
        data. Not retried. Raise ApiError if the server refuses, Unreachable if the connection fails, now or while
        reading."""
        try:
            response = self._send("GET", path, query, None, _JSON, READ, read_timeout_seconds, is_stream=True)
        except _TryAgain as again:
            raise again.last from again
        try:
            if response.status != 200:
                self._refuse(response, path)
            yield Stream(response)
        except _TryAgain as again:
            raise again.last from again
        finally:
            # The rest is not read, so the connection cannot be reused.
            response.close()

    @property
    def server_date(self) -> str | None:
        """Return the Date header of the server's last response, None before the first."""
        return self._dated[0] if self._dated else None

    def server_time(self) -> datetime:
        """Return the present time by the server's clock, accurate to about two seconds; by our own clock before the
        server's first response."""
        if self._dated is None:
            return datetime.now(UTC)
        date, answered_at = self._dated
        return parsedate_to_datetime(date) + timedelta(seconds=time.monotonic() - answered_at)

    def take_turn(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        priority: int = READ,
        timeout_seconds: float = RETRYING_SECONDS,
    ) -> None:
        """Wait until the rate limit allows one more request, and count it. Call it before a request that other code
        sends. `priority`: lower numbers are served first. Raise Unreachable after `timeout_seconds`."""
        if not self.bucket.acquire(priority, timeout_seconds):
            raise Unreachable("Too many calls are waiting for their turn.")
        # Incrementing a counter is not atomic between threads.
        with self._counting:
            self.calls[verb_and_resource(method, path, query)] += 1

    def put_off(self, headers: Mapping[str, str]) -> float | None:
        """Pause all requests for as long as a response's Retry-After asks, at most LONGEST_PAUSE_SECONDS. Return the
        seconds that it asks for, None without the header."""
        wait = _retry_after(headers.get("Retry-After"))
        if wait is not None:
            self.bucket.pause(wait)
        return wait

    def close(self) -> None:
        self._api.close()

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
        content_type: str = _JSON,
        *,
        priority: int,
        timeout_seconds: float = 10,
        is_repeatable: bool = True,
        tries: int = TRIES,
    ) -> Any:
        give_up_at = time.monotonic() + self._retry_seconds
        for tried in range(1, tries + 1):
            try:
                response = self._send(method, path, query, body, content_type, priority, timeout_seconds)
                if response.status < 300:
                    return orjson.loads(response.data) if response.data else None
                self._refuse(response, path)
            except _TryAgain as again:
                is_allowed = is_repeatable or not again.may_have_acted
                if not is_allowed or tried == tries or time.monotonic() > give_up_at:
                    raise again.last from again
                time.sleep(backoff_seconds(tried, *_BACKOFF_SECONDS))
            # Something on the way has answered, such as a proxy with a page of its own.
            except orjson.JSONDecodeError as error:
                raise Unreachable(f"{self.access.server} did not answer with JSON.") from error
        raise AssertionError("the last try returns or raises")

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None,
        content_type: str,
        priority: int,
        timeout_seconds: float,
        *,
        is_stream: bool = False,
    ) -> BaseHTTPResponse:
        """Send one request when the rate limit allows, and once more with new credentials after a 401. Return the
        response, of any status. Raise _TryAgain for a lost connection, which a retry may cure, else Unreachable."""
        url = self.access.server + path + ("?" + urlencode(query) if query else "")
        for may_renew in (True, False):
            self.take_turn(method, path, query, priority=priority)
            self._credentials = credentials = self.access.headers()
            headers = {"Accept": _JSON, "Content-Type": content_type, **credentials}
            response = self._answer(method, url, headers, body, timeout_seconds, is_stream=is_stream)
            if date := response.headers.get("Date"):
                self._dated = date, time.monotonic()
            if not (may_renew and response.status == 401 and self.access.renew(credentials)):
                return response
            response.close()
        raise AssertionError("the second round returns or raises")

    def _answer(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Mapping[str, Any] | None,
        timeout_seconds: float,
        *,
        is_stream: bool,
    ) -> BaseHTTPResponse:
        """Send one request and return its response, read to its end unless `is_stream`. Objects are not decoded into
        the official client's models, which costs too much CPU (decision 35). Raises as `_send`."""
        try:
            timeout = (CONNECT_SECONDS, timeout_seconds)
            answer = self._api.call_api(method, url, headers, body, _request_timeout=timeout)
            if not is_stream:
                answer.read()
        except ApiException as error:
            # The official client wraps TLS errors in ApiException.
            words = f"{self.access.server} and this server do not trust each other (TLS): {error.reason}"
            raise Unreachable(words) from error
        except HTTPError as error:
            raise _network_trouble(error, self.access.server) from error
        response: BaseHTTPResponse = answer.response
        return response

    def _refuse(self, response: BaseHTTPResponse, path: str) -> None:
        """Raise the exception for a response other than 2xx: _TryAgain for 429 and 5xx, ApiError for the others, and
        for all that a service or pod behind the server sent."""
        try:
            error = ApiError(response.status, without_token(response.data, self._credentials))
        except HTTPError as cut:
            raise _network_trouble(cut, self.access.server) from cut
        # A Retry-After of a service behind the server does not apply to the server.
        if _is_passed_on(path) or (response.status != 429 and response.status < 500):
            raise error
        wait = self.put_off(response.headers)
        raise _TryAgain(ApiFailed(error), may_have_acted=response.status != 429 and wait is None)


class _TryAgain(Exception):
    """A failure that a retry may cure. `last`: the exception to raise without one; `may_have_acted`: the server may
    have executed the request."""

    def __init__(self, last: Unreachable, *, may_have_acted: bool) -> None:
        super().__init__(str(last))
        self.last, self.may_have_acted = last, may_have_acted


def verb_and_resource(method: str, path: str, query: Mapping[str, str] = {}) -> tuple[str, str]:
    """Return (verb, resource) of a request as RBAC names them, such as ("list", "pods"), ("get", "pods/log") or
    ("patch", "mpijobs.kubeflow.org"); for a path without a resource ("get", "/version")."""
    parts = path.strip("/").split("/")
    is_core = parts[0] == "api"
    group = "" if is_core or len(parts) < 2 else parts[1]
    rest = parts[2 if is_core else 3 :] if parts[0] in {"api", "apis"} else []
    # `/namespaces/NAME` is the namespace itself; longer paths are objects in it.
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    if not rest:
        return method.lower(), "/" + parts[0]
    resource = rest[0] + (f".{group}" if group else "") + (f"/{rest[2]}" if len(rest) > 2 else "")
    if method == "GET":
        verb = "get" if len(rest) > 1 else "watch" if query.get("watch") else "list"
    else:
        verb = {"POST": "create", "PUT": "update"}.get(method, method.lower())
    return verb, resource


def _is_passed_on(path: str) -> bool:
    """Return whether the server passes the request on to a service or pod."""
    return verb_and_resource("GET", path)[1].endswith("/proxy")


def backoff_seconds(tried: int, first: float, longest: float) -> float:
    """Return a random pause in seconds after `tried` tries: up to `first` after one, up to twice as long after each
    further one, at most `longest`."""
    # The exponent is bounded, because a float overflows after a thousand tries.
    return random.uniform(0, min(longest, first * 2 ** min(tried - 1, 30)))


def _network_trouble(error: HTTPError, server: str) -> Exception:
    """Return the exception to raise for a failed connection: _TryAgain, which a retry may cure; after a time-out
    Unreachable, because the caller's time is used up."""
    # urllib3's error for a refused connection is a subclass of its connect time-out.
    if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
        return Unreachable(f"{server} does not answer: no connection within {CONNECT_SECONDS:g} s.")
    if isinstance(error, ReadTimeoutError):
        return Unreachable(f"{server} did not answer in time.")
    last = Unreachable(f"{server} cannot be reached: {error}")
    return _TryAgain(last, may_have_acted=not isinstance(error, NewConnectionError))


def _lines_of(response: BaseHTTPResponse) -> Generator[bytes]:
    """Yield complete lines without their newline; an incomplete last line is dropped."""
    rest = b""
    for chunk in response.stream():
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _retry_after(value: str | None) -> float | None:
    # The header may also be a date, which API servers do not send.
    return float(value) if value and value.isascii() and value.isdecimal() else None
