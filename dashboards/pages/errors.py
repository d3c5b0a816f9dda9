"""Error pages. The page for status 500 uses no database, so that it works without one; the others show the
navigation to signed-in users."""

import json

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from controlplane.http.problem_details import PROBLEM_JSON, problem_details
from controlplane.models import User
from dashboards.pages.base_page import actor_of, show


def bad_request(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 400: the URL or form is malformed, which our own pages never cause."""
    text = str(exception or "") or _("The address or the form is not one of ours.")
    return _answer(request, 400, "bad_request", _("Not understood"), text)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 404: the object does not exist or is not visible to this user; the page does not say which."""
    text = _(
        "There is no such page, or you may not see it. Ask an owner of the project to add you as a member."
    )
    return _answer(request, 404, "not_found", _("Not found"), text)


def used_link(request: HttpRequest) -> HttpResponse:
    """Answer 404: the link to create the first admin was used, has expired or never existed."""
    text = _(
        "This link is not valid: it works once, for the first admin, within 24 hours of the start. Sign in, or ask an"
        " admin for an account; while there is none, restart the control plane for another link."
    )
    return _answer(request, 404, "not_found", _("Not found"), text)


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    """Answer 403: the object is visible, but the role is insufficient."""
    text = str(exception or "") or _("Your role does not allow this.")
    return _answer(request, 403, "forbidden", _("Not allowed"), text)


def server_error(request: HttpRequest) -> HttpResponse:
    """Answer 500: an error in Trainyard. The page uses no database."""
    text = _(
        "This is our fault, not yours; it was logged. Running jobs are not affected. Try again in a moment."
    )
    return _answer(request, 500, "internal_error", _("Something broke"), text)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """Answer 403: the form has expired, or another site sent it."""
    text = _(
        "The form was open for too long or was sent from another site. Go back, reload the page and send it again."
    )
    return _answer(request, 403, "csrf_failed", _("Send it again"), text)


def _answer(request: HttpRequest, status: int, code: str, title: str, text: str) -> HttpResponse:
    if request.path.startswith("/api/"):
        problem = json.dumps(problem_details(status, code, text))
        return HttpResponse(problem, status=status, content_type=PROBLEM_JSON)
    context = {"status": status, "title": title, "text": text}
    user = getattr(request, "user", None) if status in (403, 404) else None
    if isinstance(user, User):
        return show(request, actor_of(request), "dashboards/error_inside.html", context, status=status)
    return render(request, "dashboards/error.html", context, status=status)
