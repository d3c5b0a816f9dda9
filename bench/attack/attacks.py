"""The attacks, each a client process of its own: python -m bench.attack.attacks NAME TARGET SECONDS.

TARGET is JSON (see `Target`). Every attack prints a line when it begins, ends by itself after SECONDS, and prints the
number of answers by status. Docstrings give what the attack cost before the server limited it.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

Answers = Counter[str]
ANSWER_SECONDS = 30.0
# Within this time all connections of an attack must be open.
CONNECT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """The attacked instance: its port, a member's credentials, and the attacker's own jobs. `chatty_job`: the id of one
    that writes a log all the time."""

    port: int
    token: str
    cookie: str  # of a signed-in browser, with the CSRF token
    csrf: str
    stuck_service: str  # address of a port that listens and never accepts
    chatty_job: str


Attack = Callable[[Target, float, Answers], Coroutine[None, None, None]]


def head(method: str, path: str, host: str = "localhost", **headers: object) -> bytes:
    """Return the first line and the headers of an HTTP/1.1 request, in bytes. An underscore in a header's name
    becomes a hyphen."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def posted(path: str, body: bytes, **headers: object) -> bytes:
    """Return a POST request with this body and these headers (see `head`), in bytes. The content type is JSON
    unless `headers` gives another."""
    fields: dict[str, Any] = {"Content_Type": "application/json"} | headers
    return head("POST", path, Content_Length=len(body), Connection="close", **fields) + body


async def ask(target: Target, request: bytes, answers: Answers) -> None:
    """Send a request on a new connection and read the answer to its end. Count in `answers` its status, `closed`,
    `time-out`, or the name of the connection's error."""
    writer = None
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(request)
            status = (await reader.read(1 << 16))[9:12].decode()
            while await reader.read(1 << 16):
                pass
            answers[status or "closed"] += 1
    except TimeoutError:
        answers["time-out"] += 1
    except OSError as error:
        answers[type(error).__name__] += 1
    finally:
        if writer is not None:
            writer.close()


async def repeat(
    target: Target, requests: list[bytes], connections: int, seconds: float, answers: Answers
) -> None:
    """Send the requests in turn, on `connections` connections at once, for `seconds`; count the answers by status in
    `answers`."""
    end = time.monotonic() + seconds

    async def client(place: int) -> None:
        while time.monotonic() < end:
            await ask(target, requests[place % len(requests)], answers)
            place += 1

    await asyncio.gather(*(client(place) for place in range(connections)))


async def repeated_key(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, send JSON objects with a repeated key, and count the answers. Without the server's limits
    104 KB took 14 s to parse, before any credential was checked."""

    def body(size: int) -> bytes:
        names = b",".join(b'"k%d":1' % number for number in range(size // 10))
        return b"{" + names + b',"k0":1}'

    requests = [
        posted("/api/v1/login", body(104_000)),
        posted("/api/v1/login", body(15_000)),
        posted("/api/v1/projects", body(104_000)),
        posted("/api/v1/projects", body(104_000), Authorization=f"Bearer {target.token}"),
    ]
    await repeat(target, requests, 8, seconds, answers)


async def quoted_cookie(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, send cookies with many quotes, and count the answers. Without the server's limits 64 KB took
    27-37 s to parse; the other two are the worst that the limits accept."""
    cookies = ['a="' + '"' * 65_000, 'a="' + "\\" * 1000 + "x" * 7000 + '"', "=" * 8000 + '"']
    requests = [head("GET", "/login", Cookie=cookie, Connection="close") for cookie in cookies]
    await repeat(target, requests, 8, seconds, answers)


async def wrong_sign_ins(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, sign in with wrong passwords, and count the answers. Without the server's limits 28 sign-ins
    delayed /healthz by 28 s."""
    requests = [
        posted("/api/v1/login", b'{"username": "user%d", "password": "wrong wrong wrong"}' % number)
        for number in range(500)
    ]
    await repeat(target, requests, 16, seconds, answers)


async def endless_headers(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, send endless headers, and count the answers. Without the server's limits 100 MB took 42 s to
    parse."""
    lines = [b"X-A: " + b"x" * 60_000 + b"\r\n", b"a:b\r\n" * 12_000]
    requests = [b"GET / HTTP/1.1\r\nHost: localhost\r\n" + line * 20 for line in lines]
    await repeat(target, requests, 4, seconds, answers)


async def half_open(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, keep 5,000 connections with an incomplete request open, each replaced when the server ends
    it. Without the server's limits 600 of 600 were still open after 75 s. `answers`: see `hold`."""
    await hold(target, b"GET / HTTP/1.1\r\nHost: local", 5000, seconds, answers)


async def slow_bodies(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, send 1,000 requests whose bodies arrive at one byte per second. `answers`: see `hold`."""
    start = head("POST", "/api/v1/login", Content_Type="application/json", Content_Length=10_000)
    await hold(target, start, 1000, seconds, answers)


async def hold(target: Target, start: bytes, count: int, seconds: float, answers: Answers) -> None:
    """Keep `count` connections open, each sending `start` and then one byte per second; count in `answers` those
    that the server ended and those held to the end. `seconds` counts from the time when all are open: on a slow
    machine opening them takes longer than the attack."""
    end, opened = time.monotonic() + CONNECT_SECONDS + seconds, 0
    room = asyncio.Semaphore(100)  # connects at once

    async def client() -> None:
        nonlocal end, opened
        while time.monotonic() < end:
            async with room:
                reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
            opened += 1
            if opened == count:
                end = time.monotonic() + seconds
            try:
                writer.write(start)
                while time.monotonic() < end and not reader.at_eof():
                    await asyncio.sleep(1)
                    writer.write(b"x")
                    await writer.drain()
                answers["ended by the server" if reader.at_eof() else "held"] += 1
            except OSError:
                answers["ended by the server"] += 1
            finally:
                writer.close()

    results = await asyncio.gather(*(client() for _ in range(count)), return_exceptions=True)
    answers.update(type(result).__name__ for result in results if isinstance(result, Exception))


async def port_that_never_accepts(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, request a service whose port never accepts connections, and count the answers. Without the
    server's limits this blocked the services of all projects for 46 s."""
    address = urlsplit(target.stuck_service)
    bearer = f"Bearer {target.token}"
    path = address.path or "/"
    request = head("GET", path, address.netloc, Authorization=bearer, Connection="close")
    await repeat(target, [request], 150, seconds, answers)


async def log_followers(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, follow a busy log with 150 clients, and count their first answers. Without the server's
    limits this raised other users' latency to 5-10 s. All stay connected until each has its first answer."""
    path = f"/api/v1/jobs/{target.chatty_job}/logs?follow=true"
    request = head("GET", path, Authorization=f"Bearer {target.token}")
    answered = asyncio.Barrier(150)

    async def follow(reader: asyncio.StreamReader) -> None:
        while await reader.read(1 << 16):
            pass
        # Keep the task open after its log has ended: the server must bear all followers at once.
        await asyncio.Event().wait()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(request)
        answers[(await reader.read(1000))[9:12].decode()] += 1
        following = asyncio.create_task(follow(reader))
        async with asyncio.timeout(CONNECT_SECONDS):
            await answered.wait()
        await asyncio.wait([following], timeout=seconds)
        following.cancel()
        writer.close()

    await asyncio.gather(*(client() for _ in range(150)))


async def subscriptions(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, subscribe and unsubscribe 20,000 times on each of one websocket after another, and count how
    each ended. Without the server's limits this delayed the live feed by 10-19 s."""
    end = time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {target.token}"}
    pair = [json.dumps({"op": operation, "topic": "overview"}) for operation in ("subscribe", "unsubscribe")]
    while time.monotonic() < end:
        try:
            async with connect(
                f"ws://127.0.0.1:{target.port}/ws/live", additional_headers=headers, proxy=None
            ) as socket:
                for number in range(40_000):
                    await socket.send(pair[number % 2])
                answers["took all"] += 1
        except (WebSocketException, OSError) as error:
            code = getattr(getattr(error, "rcvd", None), "code", type(error).__name__)
            answers[str(code)] += 1


async def long_preview(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, request previews of forms with a long field, and count the answers. Without the server's
    limits 400 KB took 7 s, before any rights were checked."""
    requests = []
    for size in (400_000, 16_000):
        body = f"project=nowhere&name=x&kind=train&command={'x' * size}&csrfmiddlewaretoken={target.csrf}"
        kind = "application/x-www-form-urlencoded"
        requests.append(
            posted("/new/job/preview.json", body.encode(), Content_Type=kind, Cookie=target.cookie)
        )
    await repeat(target, requests, 4, seconds, answers)


async def long_lists(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, list jobs with large specs, and count the answers. Without the server's limits 60 clones of
    a 1 MB spec made a page of 57 MiB; here the specs have the largest accepted size."""
    request = head(
        "GET", "/api/v1/jobs?limit=500", Authorization=f"Bearer {target.token}", Connection="close"
    )
    await repeat(target, [request], 4, seconds, answers)


async def plans(target: Target, seconds: float, answers: Answers) -> None:
    """For `seconds`, request plans of new jobs, each of which needs a simulation of the cluster, and count the
    answers."""
    body = b'{"name": "planned", "kind": "train", "gpus": 1, "command": ["true"]}'
    bearer = f"Bearer {target.token}"
    await repeat(
        target, [posted("/api/v1/projects/red/jobs/plan", body, Authorization=bearer)], 16, seconds, answers
    )


ATTACKS: dict[str, Attack] = {
    "JSON with a repeated key": repeated_key,
    "cookies of quotes": quoted_cookie,
    "wrong sign-ins": wrong_sign_ins,
    "endless headers": endless_headers,
    "5,000 half-open connections": half_open,
    "1,000 slow bodies": slow_bodies,
    "a port that never accepts": port_that_never_accepts,
    "150 log followers": log_followers,
    "subscribing without end": subscriptions,
    "previews of long fields": long_preview,
    "lists of large specs": long_lists,
    "plans of new jobs": plans,
}


def main(name: str, target: str, seconds: str) -> None:
    """Run one attack and print the numbers of its answers as JSON."""
    answers: Answers = Counter()
    print("begun", flush=True)
    asyncio.run(ATTACKS[name](Target(**json.loads(target)), float(seconds), answers))
    print(json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
