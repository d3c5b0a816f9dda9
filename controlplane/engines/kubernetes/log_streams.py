"""Streams of pods' logs from the API server, for one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import resource
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import aiohttp

from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.log_cursor import stamp_ms
from controlplane.kubernetes_api.client import Client
from controlplane.kubernetes_api.errors import ApiError
from controlplane.kubernetes_api.kubeconfig import without_token
from controlplane.kubernetes_api.rate_limiter import FOLLOW

MOST_STREAMS = 4000
# A stream without data for this long is opened again, because its connection may be dead.
IDLE_SECONDS = 600.0
# How long to wait for the rate limit; then the stream is tried again later.
TURN_SECONDS = 5.0
# The time-out for reading when a file began. Short, because that check is optional and the copy waits for it.
FILE_SECONDS = 10.0
# Enough bytes for a timestamp and a little more.
_HEAD_BYTES = 64


class LogNotThere(Exception):
    """The node answered that it has no file of the log. Retry: during a rotation the file is absent for a moment. The
    log of a removed container stays absent."""


def is_removed(remark: str) -> bool:
    """Return whether this message, which a kubelet sends in place of output, means that it removed the container."""
    return remark.startswith("unable to retrieve container logs")


class LogStreams:
    """Opens streams of logs under the client's rate limit and with its credentials, which are renewed after a 401.
    Create it on the event loop."""

    def __init__(self, client: Client) -> None:
        self._client = client
        # Threads of its own, so that a cluster whose login or rate limit is slow does not delay the logs of others.
        self._threads = ThreadPoolExecutor(thread_name_prefix="log-turns")
        # The number of streams is limited by the caller; the library's own limit of 100 would keep the other logs
        # waiting. No time limit, because streams last as long as their pods.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            auto_decompress=False,
        )

    def now_ms(self) -> int:
        """Return the present time by the API server's clock, Unix ms."""
        return int(self._client.server_time().timestamp() * 1000)

    async def close(self) -> None:
        await self._session.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def open(
        self, path: str, query: Mapping[str, str], *, turn_seconds: float = TURN_SECONDS
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """Context manager that opens the log of a pod's main container, with timestamps. `path`: the pod's path in
        the API, up to `/log`; `turn_seconds`: the longest wait for the rate limit. Raise ApiError if the server
        refuses the request, EngineUnreachable or one of aiohttp's errors if it does not answer."""
        query = {"container": names.MAIN_CONTAINER, "timestamps": "true", **query}
        access, on_thread = self._client.access, asyncio.get_running_loop().run_in_executor
        headers = await on_thread(self._threads, self._take_turn, path, query, turn_seconds)
        # Randomised, so that streams that began together do not all end together.
        idle_seconds = IDLE_SECONDS * random.uniform(0.5, 1.0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=idle_seconds)
        async with self._session.get(
            access.server + path,
            params=query,
            headers=headers,
            ssl=access.tls or True,
            server_hostname=access.server_name,
            timeout=timeout,
        ) as response:
            # This try fails like any other, and the next one has new credentials.
            if response.status == 401:
                await on_thread(self._threads, access.renew, headers)
            if response.status == 429 or response.status >= 500:
                self._client.put_off(response.headers)
            if response.status != 200:
                raise ApiError(response.status, without_token(await response.read(), headers))
            yield response.content

    def _take_turn(self, path: str, query: Mapping[str, str], turn_seconds: float) -> dict[str, str]:
        """Wait up to `turn_seconds` for the rate limit, and return the request's headers. Blocks; credentials may come
        from a login program."""
        self._client.take_turn("GET", path, query, priority=FOLLOW, timeout_seconds=turn_seconds)
        return self._client.access.headers()

    async def file_began_ms(self, path: str) -> int | None:
        """Return the time of the first line in the node's present log file, Unix ms; None if it is empty. Does not
        wait for the rate limit. Raises as `open`, and TimeoutError after FILE_SECONDS."""
        query = {"limitBytes": str(_HEAD_BYTES)}
        async with asyncio.timeout(FILE_SECONDS), self.open(path, query, turn_seconds=0) as stream:
            stamp = (await stream.read()).partition(b" ")[0]
        try:
            return stamp_ms(stamp)
        except ValueError:
            return None


def most_streams() -> int:
    """Return how many streams may be open at once. Each takes two file descriptors, and the process needs 256 for
    other purposes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = MOST_STREAMS if soft == resource.RLIM_INFINITY else (soft - 256) // 2
    return max(16, min(MOST_STREAMS, room))
