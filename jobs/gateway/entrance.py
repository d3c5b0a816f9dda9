"""/services/<job>/<port>/<path> on the control plane's own host: redirects users to the job's host; serves no
content of the job.

Users are signed in here. Those who may use the job are redirected to its host; browsers get a ticket, which
is valid for one port, once, for a minute.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from django.conf import settings

from controlplane.access import Forbidden, NotVisible
from controlplane.actions.service_tickets import issue_service_ticket
from controlplane.config.service_hosts import ServiceAddress
from controlplane.live.asgi import Receive, Scope, Send, client_address, host_of, query
from controlplane.live.identity import SESSION, Credential, credential_of
from jobs.gateway.admission import NotSignedIn, find_port
from jobs.gateway.limits import TooManyRequests
from jobs.gateway.pages import (
    ask_for_token,
    can_sign_in,
    is_navigation,
    redirect,
    refuse,
    refuse_access,
)
from jobs.gateway.proxy import ENTER, OPEN, TARGET, UNESCAPED
from jobs.gateway.turns import in_thread

PATH = re.compile(
    rb"/services/(?P<job_id>[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})/(?P<port>[1-9][0-9]{0,4})"
    rb"(?P<rest>/.*)?"
)
NO_HOST = (
    "Ports of jobs have host names of their own, and from {host} none of them is reached. An admin sets"
    " TRAINYARD_SERVICES_HOST to a wildcard name, such as jobs.example.org for *.jobs.example.org; until then, open a"
    " tunnel to the server (ssh -L {port}:127.0.0.1:{port} ...) and use http://localhost:{port}."
)


@dataclass(frozen=True, slots=True)
class PortRedirect:
    """A redirect to a job's port. `target`: the path and query on the job's host. `is_back`: the job's host sent
    the browser here to sign in."""

    address: ServiceAddress
    target: str
    is_back: bool

    @property
    def path(self) -> str:
        """Return the target as a path on the control plane's host."""
        return f"/services/{self.address.job_id}/{self.address.port}{self.target}"


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve everything below /services/ on the control plane's host (ASGI)."""
    visit = _visit(scope)
    if visit is None:
        await refuse_access(scope, send, NotVisible("There is no such service."))
        return
    try:
        await _respond(scope, send, visit, credential_of(scope))
    except TooManyRequests as error:
        await refuse(scope, send, 429, error.code, str(error), may_come=True)


async def _respond(scope: Scope, send: Send, visit: PortRedirect, credential: Credential | None) -> None:
    job_id, port, client = visit.address.job_id, visit.address.port, client_address(scope)
    try:
        await in_thread(credential, client, find_port, credential, job_id, port)
    except NotSignedIn:
        await _ask_to_sign_in(scope, send, visit, credential)
    except (NotVisible, Forbidden) as refusal:
        await refuse_access(scope, send, refusal)
    else:
        assert credential is not None
        await _send_on(scope, send, visit, credential)


async def _send_on(scope: Scope, send: Send, visit: PortRedirect, credential: Credential) -> None:
    host = host_of(scope)
    if not settings.SERVICES.is_reachable_from(host):
        detail = NO_HOST.format(host=host, port=settings.PORT)
        await refuse(
            scope, send, 409, "services_host_not_set", detail, job_url=f"/jobs/{visit.address.job_id}"
        )
        return
    origin = settings.SERVICES.origin(visit.address, host)
    if credential.kind != SESSION or not is_navigation(scope):
        await redirect(send, origin + visit.target, status=307)
        return
    ticket = await in_thread(
        credential, client_address(scope), issue_service_ticket, credential.secret, visit.address
    )
    fields = {"ticket": ticket, "next": visit.target, **({"again": "1"} if visit.is_back else {})}
    await redirect(send, f"{origin}{ENTER}?{urlencode(fields)}")


async def _ask_to_sign_in(
    scope: Scope, send: Send, visit: PortRedirect, credential: Credential | None
) -> None:
    if can_sign_in(scope, credential):
        await redirect(send, f"/login?next={quote(visit.path, safe='/')}")
    else:
        await ask_for_token(scope, send, credential)


def _visit(scope: Scope) -> PortRedirect | None:
    raw_path = (scope.get("raw_path") or quote(scope["path"]).encode()).partition(b"?")[0]
    match = PATH.fullmatch(raw_path)
    if match is None:
        return None
    address = ServiceAddress(match["job_id"].decode().lower(), int(match["port"]))
    rest, query_string = match["rest"] or b"/", scope.get("query_string", b"")
    if rest.decode("latin-1") == OPEN:
        target = query(scope).get("next", "/")
        return PortRedirect(address, target if TARGET.fullmatch(target) else "/", is_back=True)
    whole = UNESCAPED.sub(
        lambda found: b"%%%02X" % found[0][0], rest + (b"?" + query_string if query_string else b"")
    )
    return PortRedirect(address, whole.decode("ascii"), is_back=False)
