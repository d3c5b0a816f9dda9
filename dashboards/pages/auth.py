"""Sign-in, sign-out, and the one-time setup of the first admin."""

from urllib.parse import urlsplit

from django.contrib.auth import login, logout
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.utils.encoding import iri_to_uri
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.actions.accounts import is_setup_link_open, use_setup_link
from controlplane.actions.errors import Conflict, Invalid
from controlplane.actions.sign_in import check_password
from controlplane.http.throttle import TooManyAttempts
from dashboards.pages.errors import used_link


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponseBase:
    """Show the form, or sign in with name and password and redirect to `next`; to the overview if that is not a
    URL of this host."""
    target = request.POST.get("next") or request.GET.get("next") or "/"
    # Prevent an open redirect: a link to our sign-in must not lead to another site.
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        target = "/"
    if request.user.is_authenticated:
        return HttpResponseRedirect(target)
    if request.method != "POST":
        return render(request, "dashboards/login.html", {"next": target})
    return _try_sign_in(request, target)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def set_up(request: HttpRequest, secret: str) -> HttpResponseBase:
    """Create the first admin with a chosen name and password, and sign in. Answers 404 if `secret` is not an open
    setup link."""
    if not is_setup_link_open(secret):
        return used_link(request)
    if request.method != "POST":
        return render(request, "dashboards/setup.html", {"username": "admin"})
    username, password = request.POST.get("username", "").strip(), request.POST.get("password", "")
    errors: dict[str, str] = {}
    if password != request.POST.get("again", ""):
        errors["again"] = _("The two passwords differ; type the same one twice.")
    else:
        try:
            login(request, use_setup_link(secret, username, password))
            return redirect("overview")
        except Invalid as error:
            errors = {item.pointer.strip("/"): item.detail for item in error.errors}
        except Conflict as error:
            errors = {"username": error.detail}
    return render(request, "dashboards/setup.html", {"username": username, "errors": errors}, status=400)


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    """End the session and redirect to the sign-in page."""
    logout(request)
    return redirect("login")


def _try_sign_in(request: HttpRequest, target: str) -> HttpResponse:
    username = request.POST.get("username", "")
    context = {"next": target, "username": username}
    try:
        user = check_password(
            username, request.POST.get("password", ""), request.META.get("REMOTE_ADDR") or ""
        )
    except TooManyAttempts as refusal:
        error = _("Too many attempts; try again in %(seconds)s s.") % {"seconds": refusal.wait_seconds}
        refused = render(request, "dashboards/login.html", context | {"error": error}, status=429)
        refused["Retry-After"] = str(refusal.wait_seconds)
        return refused
    if user is None:
        error = _("The name or the password is wrong.")
        return render(request, "dashboards/login.html", context | {"error": error}, status=400)
    login(request, user)
    return _lead_on(target)


def _lead_on(target: str) -> HttpResponse:
    """Redirect the browser after a form. Jobs' ports are on other hosts, and browsers apply our form-action
    policy to redirects after a form: such a redirect goes through an intermediate page."""
    if not urlsplit(target).path.startswith("/services/"):
        return HttpResponseRedirect(target)
    address = iri_to_uri(target)
    page = format_html('<!doctype html><title>Trainyard</title><a href="{}">{}</a>', address, _("Go on"))
    return HttpResponse(page, headers={"Refresh": f"0; url={address}"})
