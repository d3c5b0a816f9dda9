"""What stands where a service should: a page for people, problem+json for programs."""

from html import escape
from http import HTTPStatus

from controlplane.live.wire import Headers, Scope, Send, answer, header, problem

AGAIN_SECONDS = 2  # a service that does not answer yet is asked again
_POLICY = b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Of the look of the other pages as much as needs no file: a pod's page could stand at the same address.
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
    """Whether a browser asks for a page to show, and not a program or a page's script."""
    return scope["method"] == "GET" and "text/html" in (header(scope, b"accept") or "")


async def refuse(
    scope: Scope, send: Send, status: int, code: str, detail: str, *, may_come: bool = False, job_id: str = ""
) -> None:
    """Say no. What may come says so to programs, and is asked for again by the page itself."""
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
        (b"referrer-policy", b"no-referrer"),  # the address may have a ticket in it
        (b"cache-control", b"no-store"),
    ]
    await answer(send, status, headers, _page(status, detail, may_come, job_id).encode())


def _page(status: int, detail: str, may_come: bool, job_id: str) -> str:
    is_away = status == HTTPStatus.SERVICE_UNAVAILABLE
    again = "<p>This page asks again by itself.</p>" if may_come else ""
    link = f'<p><a href="/jobs/{escape(job_id)}">Go to the job</a></p>' if job_id else ""
    title = "Nothing answers here" if is_away else HTTPStatus(status).phrase
    return _PAGE.format(status=status, title=title, detail=escape(detail), more=again + link)
