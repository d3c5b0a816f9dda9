"""A prefix of an S3 bucket. Calls end within their time limits and raise the errors of datasets.storage.base.

The client signs and verifies: each upload carries the SHA-256 of its body, which the server compares, and a
truncated download is an error. It retries after 5xx, timeouts and broken connections, with increasing pauses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from datasets.storage.base import DISK_FULL, Blocked
from datasets.storage.bucket_config import BucketConfig
from datasets.storage.circuit_breaker import CircuitBreaker
from datasets.storage.contents import chunks

# Concurrent parts of one multipart upload, and the size of each in bytes.
PARTS_AT_ONCE, PART_BYTES = 4, 8 << 20
# S3's maximum of keys in a page of a listing, and in a delete request.
_PAGE = 1000
# Two ranges with at most this gap are read with one request, because a second one costs another round trip.
_GAP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Timeouts and retries of a bucket's client; all times in seconds.

    `answer_seconds`: the longest wait for the next byte of an answer. `request_seconds`: the longest duration of one
    request. `retry_seconds`, `retries`: how long, and how often, a call is retried after its first failure.
    `open_seconds`: how long the circuit breaker stays open after a call without an answer; meanwhile calls to any
    bucket at the same address fail at once in this process.
    """

    connect_seconds: float = 5.0
    answer_seconds: float = 30.0
    request_seconds: float = 300.0
    retry_seconds: float = 60.0
    retries: int = 5
    open_seconds: float = 0.0


class KeyMissing(LookupError):
    """An object does not exist in the bucket."""


class TooShort(Exception):
    """An object ends before the requested bytes."""


class Bucket:
    """The objects below a prefix of a bucket. Thread-safe. Every request raises Blocked, with advice for an operator,
    if the bucket refuses it or does not answer."""

    def __init__(
        self,
        config: BucketConfig,
        client: ClientConfig = ClientConfig(),
        upload_client: ClientConfig | None = None,
    ) -> None:
        """Open no connection. `upload_client`: timeouts and retries of uploads, which take longer on a slow line;
        None: those of `client`."""
        self._where = f"s3://{config.bucket}" + (f" at {config.endpoint}" if config.endpoint else "")
        self._store = _store(config, client)
        self._writes = self._store if upload_client is None else _store(config, upload_client)
        self._breaker = _breaker(self._where, client.open_seconds)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Store an object with a single request; replaces an existing one."""
        with self._translated(key):
            obstore.put(self._writes, key, data, use_multipart=False)

    def put_slice(self, key: str, path: Path, start: int, length: int) -> None:
        """Store `length` bytes of a file, from `start`, as an object; uses a multipart upload if they are many."""
        with self._translated(key):
            obstore.put(
                self._writes,
                key,
                _slices(path, start, length),
                use_multipart=length > PART_BYTES,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    def get(self, key: str) -> bytes:
        """Return the bytes of an object. Raises KeyMissing if there is none."""
        with self._translated(key):
            return obstore.get(self._store, key).bytes().to_bytes()

    def get_ranges(self, key: str, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Return ranges of an object: from each of `starts`, which must ascend, as many bytes as `lengths` has at
        the same index. Neighbouring ranges are fetched with one request. Raises KeyMissing if there is no such
        object, TooShort if it ends before a range."""
        found: list[bytes] = []
        for group in _neighbours(list(zip(starts, lengths, strict=True))):
            start, end = group[0][0], max(begin + length for begin, length in group)
            data = memoryview(self.get_range(key, start, end - start))
            found += (bytes(data[begin - start : begin - start + length]) for begin, length in group)
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes of an object, from `start`. Raises KeyMissing if there is no such object, TooShort
        if it ends before the range."""
        if not length:
            # S3 does not support empty ranges.
            return b""
        try:
            with self._translated(key):
                answer = obstore.get_range(self._store, key, start=start, length=length).to_bytes()
        except Blocked:
            # Servers answer differently to a range beyond the end; the object's size shows whether that is
            # the cause.
            if self.size(key) < start + length:
                raise TooShort(key) from None
            raise
        if len(answer) != length:
            raise TooShort(key)
        return answer

    def size(self, key: str) -> int:
        """Return an object's size in bytes. Raises KeyMissing if there is none."""
        with self._translated(key):
            return int(obstore.head(self._store, key)["size"])

    def move(self, key: str, target: str) -> None:
        """Rename an object, by a copy and a deletion. Raises KeyMissing if there is none."""
        with self._translated(key):
            # S3 has no rename. In this order an interruption leaves two objects, not none.
            obstore.copy(self._store, key, target)
        self.delete([key])

    def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects with these keys; missing ones are not an error."""
        for some in chunks(keys, _PAGE):
            with suppress(KeyMissing), self._translated(some[0]):
                obstore.delete(self._store, some)

    def list(self, folder: str = "") -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object whose key begins with `folder`, sorted by key."""
        with self._translated(folder):
            for page in obstore.list(self._store, prefix=folder or None, chunk_size=_PAGE):
                yield from ((entry["path"], int(entry["size"])) for entry in page)

    def probe(self, key: str) -> None:
        """Write, read and delete a test object. Raises Blocked with the cause of a failure."""
        self.put(key, b"probe")
        if self.get(key) != b"probe":
            raise Blocked("unreachable", f"{self._where} does not return what was stored in it.")
        self.delete([key])

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        """Context manager around a request for the object `key`: replaces the client's errors by KeyMissing, or
        by Blocked with advice for an operator. The client's message can contain an access key, so it is neither
        included nor chained."""
        if not self._breaker.admits():
            raise Blocked("unreachable", f"{self._where} did not answer a moment ago; try again later.")
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            found = _CODE.search(str(error))
            code = found[1] if found else ""
            is_missing = isinstance(error, NotFoundError | FileNotFoundError) and code in _OF_A_KEY
            blocked = self._blocked(error, code)
            # An error answer shows that the server is reachable, so further calls need not fail at once.
            self._breaker.record(is_answered=is_missing or bool(code) or blocked.code != "unreachable")
            raise KeyMissing(key) if is_missing else blocked from None
        self._breaker.record(is_answered=True)

    def _blocked(self, error: Exception, code: str) -> Blocked:
        if code == "NoSuchBucket":
            return Blocked(
                "no_bucket", f"There is no bucket {self._where}: create it, or correct TRAINYARD_LAKE."
            )
        if code in _FULL:
            return Blocked(
                DISK_FULL, f"{self._where} is full; free space, then repeat: what was stored is kept."
            )
        if code in _REFUSED or isinstance(
            error, PermissionDeniedError | UnauthenticatedError | FileNotFoundError
        ):
            detail = f"{self._where} refuses these credentials, or they may not read, write and delete there."
            return Blocked("not_writable", detail)
        if code:
            return Blocked("unreachable", f"{self._where} answers incorrectly ({code}); try again later.")
        reason, words = _cause(str(error))
        return Blocked(reason, f"{self._where} cannot be used: {words}")


def _cause(message: str) -> tuple[str, str]:
    """Return the reason code and a description of a request without an answer, without secrets of the client's
    message."""
    # Only known phrases are used, because the whole message may contain an access key.
    if found := _CERTIFICATE.search(message):
        return NOT_TRUSTED, f"its certificate is refused ({found[1]})."
    if found := _STATUS.search(message):
        return "unreachable", f"it answers {found[1]}; try again later."
    for phrases, reason, words in _CAUSES:
        if any(phrase in message for phrase in phrases):
            return reason, words
    return "unreachable", "it answers incorrectly; try again later."


# Codes of Blocked that an operator must end, if the name does not come back by itself; until then every request fails.
NO_SUCH_HOST, NOT_TRUSTED = "no_such_host", "not_trusted"
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w{1,40})")
_STATUS = re.compile(r"status code: (\d{3})\b")
# A name server that is away (EAI_AGAIN) is no proof that the name is wrong.
_CAUSES: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("Name or service not known", "No address associated with hostname", "nodename nor servname"),
        NO_SUCH_HOST,
        "its host name does not resolve; correct TRAINYARD_S3_ENDPOINT or the name service.",
    ),
    (("Connection refused",), "unreachable", "the connection is refused; try again later."),
    (("failed to lookup address",), "unreachable", "the name service does not answer; try again later."),
    (("No route to host", "Network is unreachable"), "unreachable", "no route leads to it; try again later."),
    (("InvalidContentType",), "unreachable", "it does not speak TLS; is its address http://?"),
    (("Connection reset", "IncompleteMessage"), "unreachable", "it broke the connection; try again later."),
    (("TimedOut", "timed out", "deadline"), "unreachable", "it did not answer in time; try again later."),
)
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
# The answer to HEAD has no error code.
_OF_A_KEY = frozenset(("", "NoSuchKey", "NotFound"))
_FULL = frozenset(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"))
_REFUSED = frozenset(("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"))


def _neighbours(ranges: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the ranges (start, length) in groups, split at gaps that are too large to read. The client could do
    this too, but it panics for a truncated object."""
    group: list[tuple[int, int]] = []
    for one in ranges:
        if group and one[0] - sum(group[-1]) > _GAP_BYTES:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _slices(path: Path, start: int, length: int) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        while length > 0 and (piece := file.read(min(PART_BYTES, length))):
            length -= len(piece)
            yield piece


def _store(config: BucketConfig, client: ClientConfig) -> S3Store:
    return S3Store(
        config.bucket,
        prefix=config.prefix or None,
        config=_store_options(config),
        client_options={
            "allow_http": config.endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=client.connect_seconds),
            "read_timeout": timedelta(seconds=client.answer_seconds),
            "timeout": timedelta(seconds=client.request_seconds),
        },
        retry_config={
            "max_retries": client.retries,
            "retry_timeout": timedelta(seconds=client.retry_seconds),
        },
    )


@cache
def _breaker(where: str, open_seconds: float) -> CircuitBreaker:
    """Return the circuit breaker that all Bucket objects of this process for the bucket `where` with these
    `open_seconds` (see CircuitBreaker) share."""
    return CircuitBreaker(open_seconds)


def _store_options(config: BucketConfig) -> Any:
    options: dict[str, Any] = {"region": config.region, "checksum_algorithm": "SHA256"}
    if config.endpoint:
        # Private endpoints rarely have a host name for each bucket.
        options |= {"endpoint": config.endpoint, "virtual_hosted_style_request": False}
    if config.access_key:
        options |= {"access_key_id": config.access_key, "secret_access_key": config.secret_key}
    if config.session_token:
        options["session_token"] = config.session_token
    return options
