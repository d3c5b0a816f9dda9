"""Parts of every page: navigation with counts, clusters, translated messages, and the signed-in user."""

from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec

from django.contrib import messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.forms import BaseForm
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop, ngettext

from controlplane.access import Actor, Forbidden, NotVisible
from controlplane.actions.errors import Conflict
from controlplane.models import User
from dashboards.pages.fields import focus_errors
from dashboards.pages.js_messages import words
from dashboards.pages.navigation import navigation
from dashboards.reads.base_page import clusters

# Labels of cluster states.
WRONG = {"unreachable": gettext_noop("not reachable"), "refused": gettext_noop("refused")}
P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, Actor, P], HttpResponseBase]


def actor_of(request: HttpRequest) -> Actor:
    """Return the signed-in user as an actor. Raises PermissionDenied if no user is signed in."""
    user = request.user
    if not isinstance(user, User):
        raise PermissionDenied
    return Actor(user=user, address=request.META.get("REMOTE_ADDR") or "")


def signed_in(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponseBase]:
    """Wrap a view for signed-in users: it redirects others to the sign-in page, and answers 404 if the view raises
    NotVisible, 403 if it raises Forbidden."""

    def guarded(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        try:
            return view(request, actor_of(request), *args, **kwargs)
        except NotVisible as error:
            raise Http404(str(error)) from error
        except Forbidden as error:
            raise PermissionDenied(str(error)) from error

    update_wrapper(guarded, view)
    return guarded


def attempt(request: HttpRequest, verb: Callable[[], object], done: str) -> bool:
    """Run the action of a button and show the message `done`. If it raises Conflict, show that as an error instead
    and return False; any other exception is raised."""
    try:
        verb()
    except Conflict as conflict:
        messages.error(request, conflict.detail)
        return False
    messages.success(request, done)
    return True


def show(
    request: HttpRequest,
    actor: Actor,
    template: str,
    context: dict[str, Any] | None = None,
    status: int = 200,
) -> HttpResponse:
    """Render a template with the navigation and header of every page. `context`: its further variables."""
    framed = (context or {}) | {
        "frame": _frame(request, actor),
        "server_now": timezone.now().isoformat().replace("+00:00", "Z"),
    }
    return render(request, template, framed, status=status)


def show_form(
    request: HttpRequest, actor: Actor, template: str, form: BaseForm, context: dict[str, Any]
) -> HttpResponse:
    """Render a page with a form, the template's variable `form`. If the form has errors, the status is 400 and its
    first refused field has the focus."""
    focus_errors(form)
    return show(request, actor, template, context | {"form": form}, status=400 if form.errors else 200)


def _frame(request: HttpRequest, actor: Actor) -> dict[str, Any]:
    known = clusters()
    return {
        "clusters": known,
        "standing": standing(known),
        "nav": navigation(request, actor),
        "words": words(),
    }


def standing(known: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return texts about these clusters (as reads.base_page.clusters returns them) for the page header: `name`,
    that of the only cluster or else their number, and `wrong`, how many cannot be used and why, "" if all can."""
    name = _("none") if not known else known[0]["name"]
    if len(known) > 1:
        name = ngettext("{count} cluster", "{count} clusters", len(known)).format(count=len(known))
    wrong = [cluster["state"] for cluster in known if cluster["state"] in WRONG]
    words = _(WRONG[wrong[0]]) if len(set(wrong)) == 1 else _("not usable")
    count = f"{len(wrong)} " if len(known) > 1 else ""
    return {"name": name, "wrong": f"{count}{words}" if wrong else ""}
