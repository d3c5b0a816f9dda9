"""Streams of pods' logs, as the API server gives them to one asyncio thread."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import aiohttp
import orjson

from controlplane.engines.kubernetes.kubeconfig import Access
from controlplane.engines.kubernetes.loglines import stamp_ms
from controlplane.kubeconfigs import without_token

IDLE_SECONDS = 600.0  # a silent stream is opened anew: it may have died without a word
FILE_SECONDS = 10.0  # for an answer when a file began
_HEAD_BYTES = 64  # a stamp, and a little more


class StreamRefused(Exception):
    """The API server answered with an error. `is_missing`: there is no such log, not yet or not any more."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status} {words}")
        self.is_missing = status in (400, 404)


@dataclass(frozen=True, slots=True)
class LogStreams:
    """Opens streams with our credentials, which are renewed when they were refused."""

    access: Access
    session: aiohttp.ClientSession

    @contextlib.asynccontextmanager
    async def open(self, path: str, query: Mapping[str, str]) -> AsyncIterator[aiohttp.StreamReader]:
        """`path`: of the API, up to `/log`. Raises StreamRefused, and aiohttp's errors."""
        headers = await asyncio.to_thread(self.access.headers)  # a login program may take its time
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=10, sock_read=IDLE_SECONDS * random.uniform(0.5, 1.0)
        )
        async with self.session.get(
            self.access.server + path,
            params=query,
            headers=headers,
            ssl=self.access.tls or True,
            server_hostname=self.access.server_name,
            timeout=timeout,
        ) as response:
            if response.status == 401:
                await asyncio.to_thread(self.access.renew)
            if response.status != 200:
                raise StreamRefused(response.status, _words_of(without_token(await response.read(), headers)))
            yield response.content

    async def file_began_ms(self, path: str, container: str) -> int | None:
        """The time of the first line of the file that the node has of a log now; None for an empty one. Unix ms.

        Raises as `open`, and TimeoutError after FILE_SECONDS."""
        query = {"container": container, "timestamps": "true", "limitBytes": str(_HEAD_BYTES)}
        async with asyncio.timeout(FILE_SECONDS), self.open(path, query) as stream:
            stamp = (await stream.read()).partition(b" ")[0]
        try:
            return stamp_ms(stamp)
        except ValueError:
            return None


def _words_of(body: bytes) -> str:
    """The message of a Status object, or what stands in its place."""
    try:
        said = orjson.loads(body)["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        said = body.decode("utf-8", "replace")
    return " ".join(str(said).split())[:300]
