"""<job>-<port>.<services host>: the ports that a job declared, over HTTP and websockets, each on its own origin.

Programs authenticate with a bearer token, browsers with a cookie of this host. A page load without one is redirected
to the control plane's host, where the user is signed in, and returns with a ticket (entrance.py), which is exchanged
here for the cookie and removed from the address.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from urllib.parse import quote

from django.conf import settings

from controlplane.access import Forbidden, NotVisible
from controlplane.actions.accounts import TOKEN_PREFIX
from controlplane.actions.service_tickets import redeem_service_ticket
from controlplane.config.service_hosts import ServiceAddress
from controlplane.config.service_tokens import service_token
from controlplane.http.departure import until_gone
from controlplane.live.asgi import (
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    client_address,
    header,
    host_of,
    query,
    refuse_websocket,
)
from controlplane.live.client import unknown
from controlplane.live.identity import SESSION, Credential, is_foreign, token_of
from jobs.gateway import cookies, tickets
from jobs.gateway import headers as rules
from jobs.gateway.admission import (
    NoAnswer,
    NotRunning,
    NotSignedIn,
    Service,
    admit_service,
    until_refused,
)
from jobs.gateway.limits import TooManyRequests
from jobs.gateway.pages import (
    ask_for_token,
    can_sign_in,
    redirect,
    refuse,
    refuse_access,
    status_of,
)
from jobs.gateway.sockets import carry_websocket
from jobs.gateway.turns import in_thread
from jobs.gateway.upstream import ClientLeft, Exchange, exchange

# Paths on a job's host that the gateway answers itself.
OURS = "/.trainyard/"
ENTER, OPEN = "/.trainyard/enter", "/.trainyard/open"
# Set before the sign-in to find out whether the browser accepts cookies.
PROBE, PROBE_SECONDS = "yard_probe", 60
TARGET = re.compile(r"/[\x21-\x7e]*")
# Bytes that are not allowed in URLs but that some clients send.
UNESCAPED = re.compile(rb"[^\x21-\x7e]")
FOREIGN = "Another site's page may not do this."


@dataclass(frozen=True, slots=True)
class ProxyTarget:
    """A parsed request to a job's port. `address`: the job and its port. `target`: path and query, as received.
    `origin`: the origin of the job's pages. `own_origin`: the origin of the control plane's pages in the same
    browser."""

    address: ServiceAddress
    target: bytes
    origin: str
    own_origin: str

    @property
    def job_url(self) -> str:
        return f"{self.own_origin}/jobs/{self.address.job_id}"

    @property
    def entrance(self) -> str:
        """Return the control plane's address that issues a ticket for this request."""
        target = quote(self.target.decode("ascii"), safe="/")
        return f"{self.own_origin}/services/{self.address.job_id}/{self.address.port}{OPEN}?next={target}"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the hosts of jobs (ASGI)."""
    asked = _asked(scope)
    if scope["type"] == "websocket":
        await _websocket(scope, receive, send, asked)
    elif asked is None:
        await refuse_access(scope, send, NotVisible("There is no such service."))
    else:
        try:
            await _respond(scope, receive, send, asked)
        except TooManyRequests as error:
            await refuse(scope, send, 429, error.code, str(error), may_come=True, job_url=asked.job_url)


async def _respond(scope: Scope, receive: Receive, send: Send, asked: ProxyTarget) -> None:
    if scope["path"] == ENTER and scope["method"] == "GET":
        await _enter(scope, send, asked)
    else:
        await _http(scope, receive, send, asked)


async def _enter(scope: Scope, send: Send, asked: ProxyTarget) -> None:
    """Exchange the ticket in the query for a cookie and redirect to the original address. Answers 403 for a
    ticket that is used, expired or for another port, and if the browser keeps no cookies."""
    fields = query(scope)
    key = await in_thread(
        None, client_address(scope), redeem_service_ticket, fields.get("ticket", ""), asked.address
    )
    if key is None:
        detail = "This link works once, for a minute. Open the port from the job's page again."
        await refuse(scope, send, 403, "ticket_used", detail, job_url=asked.job_url)
    elif "again" in fields and not any(cookies.values_of(scope, PROBE)):
        detail = "The browser keeps no cookies of this address; allow them to open the port."
        await refuse(scope, send, 403, "cookies_blocked", detail, job_url=asked.job_url)
    else:
        target = fields.get("next", "/")
        # Prefix our own origin: a target that names another host would be an open redirect.
        place = asked.origin + (target if TARGET.fullmatch(target) else "/")
        # Bound to this port of this job: the cookie does not open any other.
        value = tickets.seal(Credential(SESSION, key), asked.address)
        seconds = settings.SESSION_COOKIE_AGE
        await redirect(send, place, cookies.set_cookie(cookies.service_cookie_name(), value, seconds))


async def _http(scope: Scope, receive: Receive, send: Send, asked: ProxyTarget) -> None:
    credential = _credential(scope, asked.address)
    try:
        # Reject cross-site requests: browsers send the cookie with requests of any site's page.
        if credential is not None and credential.kind == SESSION and is_foreign(scope):
            raise Forbidden(FOREIGN)
        if scope["path"].startswith(OURS):
            raise NotVisible("There is no such service.")
        service = await _admit(scope, credential, asked)
    except NotSignedIn:
        await _ask_to_sign_in(scope, send, asked, credential)
    except (NotVisible, Forbidden, NotRunning) as refusal:
        await refuse_access(scope, send, refusal, asked.job_url)
    else:
        assert credential is not None
        await _forward(scope, receive, send, asked, service, credential)


async def _forward(
    scope: Scope, receive: Receive, send: Send, asked: ProxyTarget, service: Service, credential: Credential
) -> None:
    """Copy the request to the pod and its response to the client until one side ends or the user loses access.
    Answers with an error if the pod fails before its response has begun."""
    reply = _Reply(send)
    try:
        async with exchange(service) as pod:
            headers = _request_headers(scope, service.job_id, credential, pod.address)
            request = asyncio.create_task(pod.send(scope["method"], asked.target, headers, receive))
            response = asyncio.create_task(_carry_answer(pod, reply))
            # A response may last for hours; it ends when the user loses access.
            rights = asyncio.create_task(until_refused(credential, service.job_id))
            gone = asyncio.create_task(until_gone(scope))
            await _first_of(response, request, rights, gone)
            if rights.done() and not rights.cancelled() and not reply.is_started:
                await refuse_access(scope, send, Forbidden("You may no longer use this job."))
    except NoAnswer as error:
        if reply.is_started:
            return
        detail = f"Port {service.port} of the job does not answer: {error}."
        code = "service_not_answering"
        await refuse(scope, send, error.status, code, detail, may_come=True, job_url=asked.job_url)


class _Reply:
    """Wraps `send` and records whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_started = False

    async def __call__(self, message: Message) -> None:
        self.is_started = True
        await self._send(message)


async def _first_of(response: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
    """Wait for the response, or until one of the `others` (the client, its access) ends; then cancel the rest.
    Raises NoAnswer if the pod does not answer."""
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


async def _carry_answer(pod: Exchange, send: Send) -> None:
    response = await pod.start()
    headers = [(bytes(name), bytes(value)) for name, value in response.headers]
    passed = rules.to_browser(headers, address=pod.address)
    await send({"type": "http.response.start", "status": response.status_code, "headers": passed})
    try:
        async for piece in pod.body():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except NoAnswer:
        # Our server then closes the connection without the last chunk, by which the browser detects the
        # truncation.
        return
    await send({"type": "http.response.body", "body": b""})


async def _websocket(scope: Scope, receive: Receive, send: Send, asked: ProxyTarget | None) -> None:
    """Connect a websocket to the pod; refuse it before the handshake with the status that an HTTP request would
    get."""
    status, service, credential = 404, None, None
    if asked is not None and not scope["path"].startswith(OURS):
        credential = _credential(scope, asked.address)
        try:
            # Browsers open websockets to any origin, so the server must check it.
            if is_foreign(scope):
                raise Forbidden(FOREIGN)
            service = await _admit(scope, credential, asked)
        except NotSignedIn:
            status = unknown(scope, credential).status if credential else 401
        except (NotVisible, Forbidden, NotRunning) as refusal:
            status = status_of(refusal)
        except TooManyRequests:
            status = 429
    if asked is None or service is None or credential is None:
        await refuse_websocket(scope, receive, send, status)
        return
    headers, rights = (
        _request_headers(scope, service.job_id, credential),
        until_refused(credential, service.job_id),
    )
    await carry_websocket(scope, receive, send, service, asked.target.decode("ascii"), headers, rights)


async def _admit(scope: Scope, credential: Credential | None, asked: ProxyTarget) -> Service:
    return await admit_service(credential, asked.address.job_id, asked.address.port, client_address(scope))


def _asked(scope: Scope) -> ProxyTarget | None:
    host, services = host_of(scope), settings.SERVICES
    address = services.find(host)
    raw_path = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
    if address is None or not raw_path.startswith(b"/"):
        return None
    query_string = scope.get("query_string", b"")
    target = raw_path + (b"?" + query_string if query_string else b"")
    return ProxyTarget(
        address,
        UNESCAPED.sub(lambda match: b"%%%02X" % match[0][0], target),
        services.origin(address, host),
        services.own_origin(settings.PUBLIC_URL, host),
    )


def _credential(scope: Scope, address: ServiceAddress) -> Credential | None:
    """Return the request's credential, None without one: that of our cookie, else of the Authorization header."""
    # The cookie first: an Authorization header beside it is meant for the job.
    found = (
        tickets.unseal(value, address) for value in cookies.values_of(scope, cookies.service_cookie_name())
    )
    return next((credential for credential in found if credential), None) or token_of(scope)


def _request_headers(
    scope: Scope, job_id: str, credential: Credential, pod_address: str | None = None
) -> Headers:
    """Return headers for the pod's server. `pod_address`: its host and port for an HTTP request, None for a
    websocket."""
    passed = rules.to_pod(
        scope["headers"],
        host=host_of(scope),
        scheme=settings.SERVICES.scheme,
        client=client_address(scope),
        has_own_authorization=credential.kind == SESSION and not _has_token_of_ours(scope),
        service_token=service_token(settings.SECRET_KEY, job_id),
    )
    if pod_address is None:
        return passed
    if header(scope, b"transfer-encoding"):
        passed.append((b"transfer-encoding", b"chunked"))
    return [(b"host", pod_address.encode()), (b"connection", b"close"), *passed]


def _has_token_of_ours(scope: Scope) -> bool:
    token = token_of(scope)
    return token is not None and (
        token.secret.startswith(TOKEN_PREFIX) or token.secret == settings.BOOTSTRAP_TOKEN
    )


async def _ask_to_sign_in(
    scope: Scope, send: Send, asked: ProxyTarget, credential: Credential | None
) -> None:
    """Redirect a page load to the sign-in of the control plane; answer 401 or 429 to any other request."""
    if can_sign_in(scope, credential):
        await redirect(send, asked.entrance, cookies.set_cookie(PROBE, "1", PROBE_SECONDS))
    else:
        await ask_for_token(scope, send, credential)
