"""/services/<job>/<port>/<path>: the ports that a job declared, over HTTP and websockets.

Members of the job's project come in with a bearer token or their session. A browser's page load with the
session is sent on to the same address with a ticket in it (see tickets.py), because the page itself runs
sandboxed.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from urllib.parse import quote

from controlplane.access import Forbidden, NotVisible
from controlplane.gateway import headers as rules
from controlplane.gateway import tickets
from controlplane.gateway.admission import (
    NoAnswer,
    NotRunning,
    NotSignedIn,
    Service,
    admit_service,
    until_refused,
)
from controlplane.gateway.limits import TooManyRequests
from controlplane.gateway.pages import is_page_load, refuse
from controlplane.gateway.sockets import carry_websocket
from controlplane.gateway.upstream import ClientLeft, Exchange, exchange
from controlplane.live.identity import SESSION, Credential, credential_of, is_own_origin
from controlplane.live.wire import (
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    header,
    problem,
    refuse_websocket,
)

PATH = re.compile(
    rb"/services/(?P<job_id>[0-9a-fA-F-]{36})/(?P<port>[1-9][0-9]{0,4})"
    rb"(?:/~(?P<ticket>[A-Za-z0-9_-]{20,2000}))?(?P<rest>/.*)?"
)
UNESCAPED = re.compile(rb"[^\x21-\x7e]")  # bytes that no URL has, sent by clients all the same
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Address:
    """A request's path, taken apart. `rest` is what the pod gets: the path below the service, escaped as it
    came."""

    job_id: str
    port: int
    ticket: str | None
    rest: bytes
    query: bytes

    @property
    def public_prefix(self) -> str:
        return f"/services/{self.job_id}/{self.port}"

    @property
    def prefix(self) -> str:
        return f"{self.public_prefix}/{tickets.PREFIX}{self.ticket}" if self.ticket else self.public_prefix

    @property
    def target(self) -> bytes:
        whole = (self.rest or b"/") + (b"?" + self.query if self.query else b"")
        return UNESCAPED.sub(lambda match: b"%%%02X" % match[0][0], whole)


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """The ASGI application of everything below /services/."""
    address = _address(scope)
    if scope["type"] == "websocket":
        await _websocket(scope, receive, send, address)
    elif address is None:
        await _refuse(scope, send, NotVisible("There is no such service."))
    elif address.ticket and scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"):
        await answer(send, 204, rules.cross_origin(), b"")
    else:
        await _http(scope, receive, send, address)


async def _http(scope: Scope, receive: Receive, send: Send, address: Address) -> None:
    credential = _credential(scope, address)
    try:
        service = await admit_service(credential, address.job_id, address.port)
    except NotSignedIn:
        await _ask_to_sign_in(scope, send, address)
        return
    except (NotVisible, Forbidden, NotRunning) as refusal:
        await _refuse(scope, send, refusal, address.job_id)
        return
    assert credential is not None
    if not address.ticket and credential.kind == SESSION:
        if not _may_use_session(scope):
            await _refuse(scope, send, Forbidden("Open the service's address itself, or use a token."))
            return
        if is_page_load(scope):
            await _redirect(send, _with_ticket(address, credential))
            return
    if not address.rest:
        await _redirect(send, f"{address.prefix}/")
        return
    await _forward(scope, receive, send, address, service, credential)


async def _forward(
    scope: Scope, receive: Receive, send: Send, address: Address, service: Service, credential: Credential
) -> None:
    """Carry request and answer until one side ends, or the right to be here does."""
    reply = _Reply(send)
    try:
        async with exchange(service) as pod:
            headers = _request_headers(scope, address, pod.address)
            request = asyncio.create_task(pod.send(scope["method"], address.target, headers, receive))
            response = asyncio.create_task(_carry_answer(pod, reply, address))
            rights = asyncio.create_task(until_refused(credential, address.job_id))
            await _first_of(response, request, rights)
            if rights.done() and not rights.cancelled() and not reply.is_started:
                await _refuse(scope, send, Forbidden("You may no longer use this job."))
    except TooManyRequests as error:
        job_id = address.job_id
        await refuse(scope, send, 429, error.code, str(error), may_come=True, job_id=job_id)
    except NoAnswer as error:
        detail = f"Port {address.port} of the job does not answer: {error}."
        code, job_id = "service_not_answering", address.job_id
        await refuse(scope, send, 503, code, detail, may_come=True, job_id=job_id)


class _Reply:
    """`send`, and whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        self.is_started = True
        await self._send(message)


async def _first_of(response: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
    """Until the answer is out; a client that left or a right that ended cuts it short. Raises NoAnswer."""
    tasks = (response, *others)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception) and not isinstance(result, ClientLeft):
            raise result


async def _carry_answer(pod: Exchange, send: Send, address: Address) -> None:
    response = await pod.start()
    passed = rules.to_browser(
        [(bytes(name), bytes(value)) for name, value in response.headers],
        address=pod.address,
        prefix=address.prefix,
        public_prefix=address.public_prefix,
        is_ticketed=address.ticket is not None,
    )
    await send({"type": "http.response.start", "status": response.status_code, "headers": passed})
    try:
        async for piece in pod.body():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except NoAnswer:
        return  # the server ends our connection without the last chunk, which tells the browser
    await send({"type": "http.response.body", "body": b""})


async def _websocket(scope: Scope, receive: Receive, send: Send, address: Address | None) -> None:
    """Refused before it opens with the status that HTTP would have, else carried."""
    status, service, credential = 404, None, None
    if address is not None:
        credential = _credential(scope, address)
        is_foreign = not address.ticket and not is_own_origin(scope)
        try:
            if is_foreign:
                raise Forbidden("Another site's page may not do this.")
            service = await admit_service(credential, address.job_id, address.port)
        except (NotSignedIn, NotVisible, Forbidden, NotRunning) as refusal:
            status = _status_of(refusal)
    if address is None or service is None or credential is None:
        await refuse_websocket(scope, receive, send, status, 4000 + status)
        return
    headers, rights = _request_headers(scope, address), until_refused(credential, address.job_id)
    await carry_websocket(scope, receive, send, service, address.target.decode("ascii"), headers, rights)


def _address(scope: Scope) -> Address | None:
    raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
    match = PATH.fullmatch(raw_path.partition(b"?")[0])
    if match is None:
        return None
    ticket = match["ticket"]
    return Address(
        match["job_id"].decode().lower(),
        int(match["port"]),
        ticket.decode() if ticket else None,
        match["rest"] or b"",
        scope.get("query_string", b""),
    )


def _credential(scope: Scope, address: Address) -> Credential | None:
    if address.ticket:
        return tickets.open_ticket(address.ticket, address.job_id, address.port)
    return credential_of(scope)


def _request_headers(scope: Scope, address: Address, pod_address: str | None = None) -> Headers:
    """Headers for the pod's server; those of a request of ours when its address is given, else of a websocket."""
    passed = rules.to_pod(
        scope["headers"],
        host=header(scope, b"host") or "",
        prefix=address.prefix,
        scheme="https" if scope["scheme"] in ("https", "wss") else "http",
        client=(scope.get("client") or ("",))[0],
    )
    if pod_address is None:
        return passed
    if header(scope, b"transfer-encoding"):
        passed.append((b"transfer-encoding", b"chunked"))
    return [(b"host", pod_address.encode()), (b"connection", b"close"), *passed]


def _may_use_session(scope: Scope) -> bool:
    """The cookie counts for loading a page and for calls of our own pages, never for another site's
    requests, and never as a script or style that a page of ours would run."""
    if scope["method"] not in SAFE_METHODS and not is_own_origin(scope):
        return False
    return (header(scope, b"sec-fetch-dest") or "empty") in ("document", "empty")


def _with_ticket(address: Address, credential: Credential) -> str:
    ticket = tickets.issue(credential, address.job_id, address.port)
    return f"{address.public_prefix}/{tickets.PREFIX}{ticket}{address.target.decode('latin-1')}"


async def _ask_to_sign_in(scope: Scope, send: Send, address: Address) -> None:
    """A page load goes to the sign-in page, or, with a ticket that has ended, to the address without it."""
    if not is_page_load(scope):
        detail = "Sign in, or send 'Authorization: Bearer <token>'."
        await problem(send, 401, "not_authenticated", detail, [(b"www-authenticate", b"Bearer")])
        return
    plain = address.public_prefix + address.target.decode("ascii")
    await _redirect(send, plain if address.ticket else f"/login?next={quote(plain, safe='/')}")


async def _redirect(send: Send, location: str) -> None:
    kept_out = [(b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer")]
    await answer(send, 302, [(b"location", location.encode("latin-1")), *kept_out], b"")


async def _refuse(
    scope: Scope, send: Send, refusal: NotVisible | Forbidden | NotRunning, job_id: str = ""
) -> None:
    status = _status_of(refusal)
    codes = {404: "not_found", 403: "forbidden", 503: "service_not_running"}
    may_come = isinstance(refusal, NotRunning) and refusal.may_come
    link = job_id if status == 503 else ""  # whoever may not come here has no use for it
    await refuse(scope, send, status, codes[status], str(refusal), may_come=may_come, job_id=link)


def _status_of(refusal: Exception) -> int:
    if isinstance(refusal, NotSignedIn):
        return 401
    if isinstance(refusal, Forbidden):
        return 403
    return 503 if isinstance(refusal, NotRunning) else 404
