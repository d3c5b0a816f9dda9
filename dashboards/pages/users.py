"""Pages of users and API tokens."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.http import HttpRequest, HttpResponseBase, HttpResponseNotAllowed
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.access import Actor, NotVisible, require_admin
from controlplane.actions.accounts import (
    TOKEN_DAYS,
    create_user,
    edit_user,
    issue_token,
    revoke_token,
)
from controlplane.actions.errors import Conflict, Invalid
from controlplane.actions.passwords import set_password
from controlplane.http.throttle import TooManyAttempts
from controlplane.models import Token, User
from dashboards.lists.jobs import BESIDE, JOBS, latest_of
from dashboards.lists.table import list_page, table
from dashboards.lists.tokens import TOKENS
from dashboards.lists.users import USERS
from dashboards.pages.asking import ask
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.pages.fields import errors_by_field
from dashboards.pages.questions import ASKED, about_token, about_user
from dashboards.reads import users as reads


@signed_in
def user_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show all users; create one on POST. For admins."""
    require_admin(actor)
    errors: dict[str, str] = {}
    if request.method == "POST":
        errors = _create(request, actor)
        if not errors:
            return redirect("users")
    page = list_page(USERS, actor, User.objects.all(), request.GET.dict())
    context = {"page": page, "errors": errors, "raw": request.POST.dict() if errors else {}}
    return show(request, actor, "dashboards/users.html", context, status=400 if errors else 200)


@signed_in
def user_page(request: HttpRequest, actor: Actor, username: str) -> HttpResponseBase:
    """Show a user with projects and latest jobs. For the user, admins, and users who share a project; others get
    404."""
    return _user_page(request, actor, _subject(actor, username), {})


def _user_page(
    request: HttpRequest, actor: Actor, subject: User, errors: Mapping[str, str]
) -> HttpResponseBase:
    """Show the page of the user `subject`. `errors`: the messages of the password form by field."""
    context = {
        "errors": errors,
        "subject": subject,
        "memberships": reads.memberships(actor, subject),
        "jobs": table(JOBS, latest_of(actor, subject), without=("user", *BESIDE)),
        "is_self": actor.user == subject,
    }
    return show(request, actor, "dashboards/user.html", context, status=400 if errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def user_verb(request: HttpRequest, actor: Actor, username: str, verb: str) -> HttpResponseBase:
    """Lock or unlock a user or change admin rights, for admins; or set a password, also the user's own. GET asks for
    confirmation where the effect is large."""
    subject = _subject(actor, username)
    if request.method != "POST":
        # The URL of a refused form; a GET shows the user's page.
        if verb == "password":
            return redirect("user", username)
        if verb not in ASKED:
            return HttpResponseNotAllowed(["POST"])
        require_admin(actor)
        return ask(request, actor, about_user(subject, verb))
    if verb == "password":
        return _set_password(request, actor, subject)
    changes: dict[str, dict[str, bool]] = {
        "lock": {"is_active": False},
        "unlock": {"is_active": True},
        "promote": {"is_admin": True},
        "demote": {"is_admin": False},
    }
    attempt(request, lambda: edit_user(subject, actor=actor, **changes[verb]), _("Saved."))
    return redirect("user", username)


@never_cache
@signed_in
def token_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show the user's own API tokens, and create one. A new token is shown once, in the answer to the POST."""
    context: dict[str, Any] = {"days": TOKEN_DAYS, "errors": {}}
    status = 200
    if request.method == "POST":
        try:
            context["secret"] = _issue(request, actor)
        except Invalid as invalid:
            context["errors"] = errors_by_field(invalid)
            status = 400
    tokens = Token.objects.filter(user=actor.user, revoked_at=None)
    context["page"] = list_page(TOKENS, actor, tokens, request.GET.dict())
    return show(request, actor, "dashboards/tokens.html", context, status=status)


@require_http_methods(["GET", "HEAD", "POST"])
@signed_in
def token_revoke(request: HttpRequest, actor: Actor, token_id: int) -> HttpResponseBase:
    """Revoke one of the actor's own tokens; GET asks for confirmation. Raises NotVisible for any other token."""
    token = Token.objects.select_related("user").filter(pk=token_id, user=actor.user).first()
    if token is None:
        raise NotVisible("There is no such token.")
    if request.method != "POST":
        return ask(request, actor, about_token(token))
    attempt(
        request,
        lambda: revoke_token(token, actor=actor),
        _("The token is revoked; programs that use it are refused."),
    )
    return redirect("tokens")


def _subject(actor: Actor, username: str) -> User:
    user = reads.visible_user(actor, username)
    if user is None:
        raise NotVisible("There is no such user that you can see.")
    return user


def _create(request: HttpRequest, actor: Actor) -> dict[str, str]:
    username = request.POST.get("username", "").strip()
    try:
        create_user(
            username, request.POST.get("password") or None, actor=actor, is_admin=bool(request.POST.get("is_admin")),
            email=request.POST.get("email", "").strip(),
        )  # fmt: skip
    except Invalid as invalid:
        return errors_by_field(invalid)
    except Conflict as conflict:
        return {"username": conflict.detail}
    messages.success(request, _("%(name)s can sign in now.") % {"name": username})
    return {}


def _issue(request: HttpRequest, actor: Actor) -> str:
    assert actor.user is not None
    _token, secret = issue_token(
        actor.user,
        request.POST.get("name", "").strip()[:100] or _("unnamed"),
        actor=actor,
        days=_days(request.POST.get("days", "").strip()),
        is_read_only=bool(request.POST.get("is_read_only")),
    )
    return secret


def _days(text: str) -> int:
    """Return the number of days entered for a token, TOKEN_DAYS for "". Returns 0, which is refused later, for
    other text."""
    if not text:
        return TOKEN_DAYS
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def _set_password(request: HttpRequest, actor: Actor, subject: User) -> HttpResponseBase:
    try:
        revoked = set_password(
            subject,
            request.POST.get("password", ""),
            actor=actor,
            current=request.POST.get("current", ""),
            keep_tokens=bool(request.POST.get("keep_tokens")),
        )
    except Invalid as refusal:
        return _user_page(request, actor, subject, errors_by_field(refusal))
    except TooManyAttempts as refusal:
        return _user_page(request, actor, subject, {"current_password": str(refusal)})
    if actor.user == subject:
        # A changed password ends all sessions of the user; keep this one.
        update_session_auth_hash(request, subject)
    messages.success(
        request,
        ngettext(
            "The password is changed; other sessions and %(count)s token ended.",
            "The password is changed; other sessions and %(count)s tokens ended.",
            revoked,
        )
        % {"count": revoked},
    )
    return redirect("user", subject.username)
