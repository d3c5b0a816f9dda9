"""Error answers of the gateway: a page for browsers, problem+json for programs."""

from html import escape
from http import HTTPStatus

from controlplane.access import Forbidden, NotVisible
from controlplane.live.asgi import Headers, Scope, Send, answer, header, problem
from controlplane.live.client import unknown
from controlplane.live.identity import SESSION, Credential
from jobs.gateway.admission import NotRunning

TITLES = {
    "service_not_running": "Nothing answers here",
    "service_not_answering": "Nothing answers here",
    "services_host_not_set": "Ports have no address yet",
    "ticket_used": "This link was used",
    "cookies_blocked": "Cookies are needed",
}
# Reload interval of the page while a service is not ready.
AGAIN_SECONDS = 2
_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Styles are inline: a request for a style sheet would go to the job's host, which may be the pod's server.
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title} · Trainyard</title>
<style>
:root {{ color-scheme: light dark; --page: #f6f7f9; --text: #14181f; --second: #5b6472; --accent: #2f5fd0 }}
@media (prefers-color-scheme: dark) {{
  :root {{ --page: #0f1216; --text: #e8ebf0; --second: #9aa4b2; --accent: #7ea6ff }}
}}
body {{ display: grid; place-items: center; min-height: 100vh; margin: 0; background: var(--page);
  color: var(--text); font: 14px/1.5 Inter, system-ui, sans-serif }}
main {{ width: min(360px, calc(100% - 48px)); overflow-wrap: anywhere }}
h1 {{ margin: 0 0 8px; font-size: 20px; font-weight: 600 }}
p {{ margin: 0 0 12px; color: var(--second) }}
a {{ color: var(--accent) }}
</style>
<main><p>{status}</p><h1>{title}</h1><p>{detail}</p>{more}</main>
</html>
"""


def is_page_load(scope: Scope) -> bool:
    """Return whether the request loads a page, as opposed to one by a program or a page's script."""
    return scope["method"] == "GET" and "text/html" in (header(scope, b"accept") or "")


def is_navigation(scope: Scope) -> bool:
    """Return whether the page fills a tab, as opposed to a frame: only then can a sign-in follow."""
    return is_page_load(scope) and header(scope, b"sec-fetch-dest") in (None, "document")


def can_sign_in(scope: Scope, credential: Credential | None) -> bool:
    """Return whether a refused request can be redirected to the sign-in page: True for a navigation in a browser tab
    without a bearer token."""
    return is_navigation(scope) and (credential is None or credential.kind == SESSION)


def status_of(refusal: Exception) -> int:
    """Return the HTTP status of a refusal: 403 for Forbidden, 503 for NotRunning, else 404."""
    statuses = {Forbidden: 403, NotRunning: 503}
    return statuses.get(type(refusal), 404)


async def refuse_access(
    scope: Scope, send: Send, refusal: NotVisible | Forbidden | NotRunning, job_url: str = ""
) -> None:
    """Answer a request with the status and message of `refusal`. `job_url`: a link on the page, shown only if the
    service is not running."""
    status = status_of(refusal)
    codes = {404: "not_found", 403: "forbidden", 503: "service_not_running"}
    may_come = isinstance(refusal, NotRunning) and refusal.may_come
    link = job_url if status == 503 else ""
    await refuse(scope, send, status, codes[status], str(refusal), may_come=may_come, job_url=link)


async def ask_for_token(scope: Scope, send: Send, credential: Credential | None) -> None:
    """Answer 401 to a request that is not a page load, or 429 to an address that has tried many unknown
    tokens."""
    refusal = unknown(scope, credential) if credential else None
    if refusal is not None and refusal.status == 429:
        wait = [(b"retry-after", str(refusal.wait_seconds).encode())]
        await problem(send, 429, refusal.code, str(refusal), wait)
        return
    detail = "Sign in, or send 'Authorization: Bearer <token>'."
    await problem(send, 401, "not_authenticated", detail, [(b"www-authenticate", b"Bearer")])


async def redirect(send: Send, location: str, *cookies: tuple[bytes, bytes], status: int = 302) -> None:
    """Redirect the browser to `location` and set cookies, keeping the address out of caches and referrers."""
    kept_out = [(b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer")]
    await answer(send, status, [(b"location", location.encode("latin-1")), *kept_out, *cookies], b"")


async def refuse(
    scope: Scope,
    send: Send,
    status: int,
    code: str,
    detail: str,
    *,
    may_come: bool = False,
    job_url: str = "",
) -> None:
    """Answer with an error: `status`, a reason `code` and a `detail` for the user. `may_come`: a retry may help;
    programs get Retry-After, and the page reloads itself. `job_url`: a link on the page, "" for none."""
    again = str(AGAIN_SECONDS).encode()
    headers: Headers = [(b"retry-after", again)] if may_come else []
    if not is_page_load(scope):
        await problem(send, status, code, detail, headers)
        return
    if may_come:
        headers.append((b"refresh", again))
    headers += [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", _POLICY),
        # The address may contain a ticket, which must not reach other sites.
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-store"),
    ]
    title = TITLES.get(code) or HTTPStatus(status).phrase
    await answer(send, status, headers, _page(status, title, detail, may_come, job_url).encode())


def _page(status: int, title: str, detail: str, may_come: bool, job_url: str) -> str:
    again = "<p>This page reloads by itself.</p>" if may_come else ""
    link = f'<p><a href="{escape(job_url)}">Go to the job</a></p>' if job_url else ""
    return _PAGE.format(status=status, title=title, detail=escape(detail), more=again + link)
