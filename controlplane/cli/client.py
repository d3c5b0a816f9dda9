"""HTTP to the control plane: one base URL, one token, and retries that cannot repeat a write.

Every write carries an Idempotency-Key that its retries repeat: if a response was lost, the retry gets it
instead of writing twice. Errors are raised as `ApiError`, which has the exit code.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from controlplane.cli.errors import TIMED_OUT, UNREACHABLE, USAGE, ApiError, CliError
from controlplane.cli.version import VERSION
from controlplane.http_client import FINAL, LATER, SAID_SECONDS, open_connection, retry_delay, waits_words

API = "/api/v1"
MAX_ATTEMPTS = 4
TIMEOUT_SECONDS = 30.0
# Codes of temporary refusals (409 while a lake is collected or a pod reads a volume), and how long a request is
# retried for them.
BEING_READ = "being_read"
BUSY, BUSY_SECONDS = ("in_use", BEING_READ), 1800.0

Payload = bytes | Callable[[], Iterator[bytes]] | None
Query = Mapping[str, "str | int | bool | None"]


class Response:
    """A response that was read completely. `body`: the decoded JSON, None if there is none or it is no JSON."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, headers: http.client.HTTPMessage, raw: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body: Any = _decoded(raw)


class Client:
    """An HTTP client for one server with one token ("": none). Not thread-safe. `sleep` waits between retries;
    `timeout`: seconds per response; `say` prints a line when a request has to wait long. Raise CliError (2) unless
    `url` is an http:// or https:// address."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        sleep: Callable[[float], None] = time.sleep,
        timeout: float = TIMEOUT_SECONDS,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.url = url
        self._parts = _checked_url(url)
        self._token = token
        self._sleep = sleep
        self._say = say
        self._timeout = timeout
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def allow(self, seconds: float) -> None:
        """Set how many seconds to wait for each response from now on; closes the present connection."""
        # The open connection has the earlier limit, so the next request opens another one.
        self.close()
        self._timeout = seconds

    def get(self, path: str, query: Query | None = None) -> Any:
        """Send a GET and return the response's JSON. Raises as `request`."""
        return self.request("GET", path, query=query).body

    def post(self, path: str, body: object = None, query: Query | None = None, key: str | None = None) -> Any:
        """Send a POST and return the response's JSON. `key`: the Idempotency-Key, by default a new one. Raises as
        `request`."""
        return self.request("POST", path, body={} if body is None else body, query=query, key=key).body

    def patch(self, path: str, body: object, etag: str | None = None, query: Query | None = None) -> Any:
        """Send a PATCH and return the response's JSON. With `etag` it is refused (412) if the object has changed.
        Raises as `request`."""
        return self.request(
            "PATCH", path, body=body, query=query, extra={"If-Match": etag} if etag else {}
        ).body

    def delete(self, path: str, query: Query | None = None) -> Any:
        """Send a DELETE and return the response's JSON, None if there is none. Raises as `request`."""
        return self.request("DELETE", path, query=query).body

    def pages(self, path: str, query: Query, limit: int) -> dict[str, Any]:
        """Read a list up to `limit` rows. Return its last page, with all rows in `results`; its `next` is None if
        there are no more. Raises as `request`."""
        # 500 is the largest page that the server gives.
        page: dict[str, Any] = self.get(path, {**query, "limit": min(limit, 500)})
        results: list[Any] = list(page["results"])
        while page.get("next") and len(results) < limit:
            page = self.request("GET", self._local(str(page["next"]))).body
            results += page["results"]
        return {**page, "results": results[:limit], "previous": None}

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        query: Query | None = None,
        key: str | None = None,
        extra: dict[str, str] | None = None,
    ) -> Response:
        """Send a request and read the response. Temporary refusals are retried, with the same Idempotency-Key `key`
        (by default a new one). `extra`: more headers. Raise ApiError for a status of 400 or more, CliError if the
        server cannot be reached or redirects."""
        headers = self._headers(method, extra or {}, key)
        payload = None if body is None else _encoded(body)
        if payload is not None:
            headers["Content-Type"] = "application/json"
        return self._attempts(method, self._target(path, query), payload, headers)

    def upload(self, path: str, pieces: Callable[[], Iterator[bytes]], size: int, media: str) -> Any:
        """Send a PUT with a body of `size` bytes and content type `media`; return the response's JSON. `pieces`
        yields the body, and is called again for each retry. Raises as `request`."""
        headers = self._headers("PUT", {"Content-Type": media, "Content-Length": str(size)}, None)
        return self._attempts("PUT", self._target(path, None), pieces, headers).body

    def stream(
        self,
        path: str,
        query: Query | None = None,
        extra: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> Iterator[bytes]:
        """Send a GET and yield the body in pieces as they arrive. Uses a connection of its own, closed with the
        iterator. Raise ApiError for a status of 400 or more, CliError if the server cannot be reached or sends
        nothing for `timeout` seconds."""
        connection = open_connection(self._parts, timeout)
        try:
            headers = {**self._headers("GET", extra or {}, None), "Accept": "text/event-stream"}
            connection.request("GET", self._target(path, query), headers=headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise _api_error(response.status, response.read())
            # read1: return what has arrived without waiting for a full piece.
            while piece := response.read1(65536):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self.url, error) from error
        finally:
            connection.close()

    def open(self, path: str, extra: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a GET with `extra` headers and return the response, whose body the caller reads. Uses a connection of
        its own, which closing the response closes. Raise ApiError for a status of 400 or more, CliError if the server
        cannot be reached."""
        connection = open_connection(self._parts, self._timeout)
        try:
            connection.request(
                "GET",
                self._target(path, None),
                headers={**self._headers("GET", {}, None), **extra, "Connection": "close"},
            )
            response = connection.getresponse()
            if response.status < 400:
                return response
            refused = _api_error(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unreachable(self.url, error) from error
        connection.close()
        raise refused

    def authorization(self) -> dict[str, str]:
        """Return the Authorization header as a dict; {} without a token."""
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _attempts(self, method: str, target: str, payload: Payload, headers: dict[str, str]) -> Response:
        response = self._exchange_again(method, target, payload, headers)
        attempt, waited = 1, 0.0
        while (is_busy := _code_of(response.body) in BUSY) or response.status in LATER:
            if waited >= BUSY_SECONDS or (attempt >= MAX_ATTEMPTS and not is_busy):
                break
            if _code_of(response.body) in FINAL:
                break
            seconds = retry_delay(response.headers.get("Retry-After"), attempt)
            self._announce(response, seconds, attempt, is_busy=is_busy, is_first=not waited)
            self._sleep(seconds)
            # At least a second counts, so that `Retry-After: 0` cannot make it wait without end.
            attempt, waited = attempt + 1, waited + max(seconds, 1.0)
            response = self._exchange_again(method, target, payload, headers)
        if response.status >= 400:
            raise ApiError(response.status, response.body if isinstance(response.body, dict) else {})
        # Not followed, because that would send the token to whatever address the response names.
        if response.status >= 300:
            raise CliError(
                f"{self.url} redirects to {response.headers.get('Location')}: log in with that address"
            )
        return response

    def _announce(
        self, response: Response, seconds: float, attempt: int, *, is_busy: bool, is_first: bool
    ) -> None:
        """Print why a request waits `seconds` before its next attempt: once while the server is busy, else before
        each long pause."""
        detail = response.body.get("detail", "") if isinstance(response.body, dict) else ""
        if is_busy and is_first:
            self._say(f"{detail} Waiting; it continues by itself.")
        elif not is_busy and seconds >= SAID_SECONDS:
            words = detail or f"{self.url} answered {response.status}."
            self._say(waits_words(words, seconds, attempt + 1, MAX_ATTEMPTS))

    def _exchange_again(
        self, method: str, target: str, payload: Payload, headers: dict[str, str]
    ) -> Response:
        """Send one request and return its response; repeat it once if the connection broke. Raise CliError if the
        server cannot be reached."""
        try:
            return self._exchange(method, target, payload, headers)
        # Servers close persistent connections at any time; a write's key makes repeating it safe.
        except (ConnectionResetError, BrokenPipeError, http.client.HTTPException):
            self.close()
        except OSError as error:
            self.close()
            raise _unreachable(self.url, error) from error
        try:
            return self._exchange(method, target, payload, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise _unreachable(self.url, error) from error

    def _exchange(self, method: str, target: str, payload: Payload, headers: dict[str, str]) -> Response:
        if self._connection is None:
            self._connection = open_connection(self._parts, self._timeout)
        body = payload() if callable(payload) else payload
        self._connection.request(method, target, body=body, headers=headers)
        answer = self._connection.getresponse()
        return Response(answer.status, answer.headers, answer.read())

    def _headers(self, method: str, extra: Mapping[str, str], key: str | None) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "User-Agent": f"yard/{VERSION}",
            **self.authorization(),
            **extra,
        }
        if method != "GET":
            headers["Idempotency-Key"] = key or os.urandom(16).hex()
        return headers

    def _target(self, path: str, query: Query | None) -> str:
        target = f"{self._parts.path.rstrip('/')}{path if path.startswith('/') else f'{API}/{path}'}"
        given = {name: _query_value(value) for name, value in (query or {}).items() if value is not None}
        return f"{target}?{urlencode(given)}" if given else target

    def _local(self, url: str) -> str:
        """Return a `next` link as a path on this client's server."""
        parts = urlsplit(url)
        # Only the path is used: the token must not be sent to another server.
        path = parts.path.removeprefix(self._parts.path.rstrip("/"))
        return f"{path}?{parts.query}" if parts.query else path


def _code_of(body: Any) -> str:
    return str(body.get("code", "")) if isinstance(body, dict) else ""


def segment(name: str) -> str:
    """Return a name quoted as one segment of a URL's path."""
    return quote(name, safe="")


def _checked_url(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise CliError(f"{url!r} is not an http:// or https:// address", USAGE)
    return parts


def _encoded(body: object) -> bytes:
    try:
        # NaN and infinity are not valid JSON, although Python would write them.
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise CliError(f"not a number that JSON can carry: {error}", USAGE) from error


def _decoded(raw: bytes) -> Any:
    try:
        # A proxy's error page is no JSON; the status then says enough.
        return json.loads(raw) if raw else None
    except ValueError:
        return None


def _query_value(value: str | int | bool | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _api_error(status: int, raw: bytes) -> ApiError:
    body = _decoded(raw)
    return ApiError(status, body if isinstance(body, dict) else {})


def _unreachable(url: str, error: Exception) -> CliError:
    if isinstance(error, TimeoutError):
        return CliError(f"{url} did not answer in time", TIMED_OUT)
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return CliError(f"cannot reach {url}: {why}", UNREACHABLE, "is it running? check with: yard doctor")
