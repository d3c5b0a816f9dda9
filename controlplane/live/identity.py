"""Authenticate sockets and streams, and check their credentials again while they are open.

A connection outlives the request that opened it, so its credential is checked every second: a revoked token,
an ended session, a locked account, a changed password or a lost role takes effect at once.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.models import Session
from django.http import parse_cookie
from django.http.request import split_domain_port, validate_host
from django.utils import timezone
from django.utils.crypto import constant_time_compare

from controlplane.access import Actor
from controlplane.live.asgi import Scope, header, host_of
from controlplane.models import Membership, Token, User

BEARER = "bearer"
SESSION, TOKEN = "session", "token"


@dataclass(frozen=True, slots=True)
class Credential:
    """What a connection authenticates with. `kind`: SESSION or TOKEN; `secret`: the session's key or the API token."""

    kind: str
    secret: str


@dataclass(frozen=True, slots=True)
class Identity:
    """An authenticated user, the credential, and the ids of the projects that the user may view (None: all)."""

    user: User
    kind: str
    # The session's key, or the token's id.
    key: str
    # The password hash when the session began; a new hash ends the session.
    password: str
    project_ids: frozenset[int] | None
    is_read_only: bool = False
    token_prefix: str = ""

    @property
    def actor(self) -> Actor:
        return Actor(user=self.user, token_prefix=self.token_prefix, is_read_only=self.is_read_only)


def credential_of(scope: Scope) -> Credential | None:
    """Return the credential of a request or websocket: its bearer token, else its session cookie; None if it has
    neither. It is not checked."""
    token = token_of(scope)
    if token is not None:
        return token
    key = _cookie(scope, settings.SESSION_COOKIE_NAME)
    return Credential(SESSION, key) if key else None


def token_of(scope: Scope) -> Credential | None:
    """Return the bearer token of a request or websocket, None if there is none. Browsers cannot set headers on a
    websocket, so it may also be the subprotocol after `bearer`."""
    kind, _, secret = (header(scope, b"authorization") or "").partition(" ")
    if kind.lower() == BEARER:
        return Credential(TOKEN, secret.strip())
    offered = list(scope.get("subprotocols") or ())
    if len(offered) >= 2 and offered[0] == BEARER:
        return Credential(TOKEN, offered[1])
    return None


def is_own_host(scope: Scope) -> bool:
    """Return whether the Host header is one of ALLOWED_HOSTS."""
    return validate_host(split_domain_port(host_of(scope))[0], settings.ALLOWED_HOSTS)


def is_own_origin(scope: Scope) -> bool:
    """Return whether the Host header is ours, and the Origin header, if any, too. False for pages of other sites,
    with whose requests browsers also send our cookies."""
    if not is_own_host(scope):
        return False
    origin = header(scope, b"origin")
    own = (*settings.CSRF_TRUSTED_ORIGINS, None)
    return origin in own or _netloc(origin) == host_of(scope)


def is_foreign(scope: Scope) -> bool:
    """Return whether a page of another origin makes this request, other than by a followed link; False for programs
    that are no browsers. Needed because browsers share cookies between the hosts of a domain, such as jobs' hosts and
    ours."""
    origin = header(scope, b"origin")
    own = (*settings.CSRF_TRUSTED_ORIGINS, None)
    if origin not in own and _netloc(origin) != host_of(scope):
        return True
    if (header(scope, b"sec-fetch-site") or "none") in ("none", "same-origin"):
        return False
    is_page = (header(scope, b"sec-fetch-mode"), header(scope, b"sec-fetch-dest")) == ("navigate", "document")
    return not (is_page and scope["method"] in ("GET", "HEAD"))


def identify(credential: Credential) -> Identity | None:
    """Return the identity of a credential; None if it is unknown, expired or revoked, or its user is inactive."""
    if credential.kind == TOKEN:
        return _by_token(credential.secret)
    return _by_session(credential.secret)


def still_valid(identities: Iterable[Identity], now: datetime) -> dict[Identity, Identity | None]:
    """Return the current form of each identity: the same object if nothing changed, None if it is no longer valid.
    At most four queries for any number of identities."""
    known = set(identities)
    users = {user.pk: user for user in User.objects.filter(pk__in={known_.user.pk for known_ in known})}
    sessions = set(_live_sessions([known_.key for known_ in known if known_.kind == SESSION], now))
    tokens = _live_tokens([known_.key for known_ in known if known_.kind == TOKEN], now)
    projects = _projects_of(users.values())
    result: dict[Identity, Identity | None] = {}
    for identity in known:
        user = users.get(identity.user.pk)
        is_live = identity.key in (sessions if identity.kind == SESSION else tokens)
        if user is None or not user.is_active or not is_live or _has_new_password(identity, user):
            result[identity] = None
        else:
            result[identity] = _with(identity, user, projects[user.pk])
    return result


def _has_new_password(identity: Identity, user: User) -> bool:
    # Tokens are not compared: the change of a password revokes them in their own rows.
    return identity.kind == SESSION and identity.password != user.password


def _with(identity: Identity, user: User, project_ids: frozenset[int] | None) -> Identity:
    if identity.project_ids == project_ids and identity.user.is_admin == user.is_admin:
        return identity
    return Identity(
        user,
        identity.kind,
        identity.key,
        identity.password,
        project_ids,
        identity.is_read_only,
        identity.token_prefix,
    )


def _by_token(secret: str) -> Identity | None:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    live = Token.objects.select_related("user").filter(digest=digest, revoked_at=None)
    token = live.filter(expires_at__gt=timezone.now(), user__is_active=True).first()
    if token is None:
        return None
    user, projects = token.user, _projects_of([token.user])
    return Identity(
        user, TOKEN, str(token.pk), user.password, projects[user.pk], token.is_read_only, token.prefix
    )


def _by_session(key: str) -> Identity | None:
    if "\0" in key:
        # PostgreSQL refuses NUL in a query parameter, so such a value is not looked up.
        return None
    store = import_module(settings.SESSION_ENGINE).SessionStore(session_key=key)
    user_id, stamp = store.get(SESSION_KEY), store.get(HASH_SESSION_KEY, "")
    if user_id is None:
        return None
    user = User.objects.filter(pk=user_id, is_active=True).first()
    if user is None or not constant_time_compare(stamp, user.get_session_auth_hash()):
        return None
    return Identity(user, SESSION, key, user.password, _projects_of([user])[user.pk])


def _live_sessions(keys: list[str], now: datetime) -> Iterable[str]:
    if not keys:
        return []
    return Session.objects.filter(session_key__in=keys, expire_date__gt=now).values_list(
        "session_key", flat=True
    )


def _live_tokens(keys: list[str], now: datetime) -> set[str]:
    if not keys:
        return set()
    live = Token.objects.filter(pk__in=keys, revoked_at=None, expires_at__gt=now)
    return {str(key) for key in live.values_list("pk", flat=True)}


def _projects_of(users: Iterable[User]) -> dict[int, frozenset[int] | None]:
    all_users = list(users)
    found: dict[int, set[int]] = {user.pk: set() for user in all_users}
    members = Membership.objects.filter(user_id__in=found)
    for user_id, project_id in members.values_list("user_id", "project_id"):
        found[user_id].add(project_id)
    return {user.pk: None if user.is_admin else frozenset(found[user.pk]) for user in all_users}


def _netloc(origin: str | None) -> str | None:
    """Return the host and port of an Origin header; "" for None, None if it is malformed."""
    try:
        return urlsplit(origin or "").netloc
    except ValueError:
        # Browsers send a valid header; with an invalid one from another client, the request counts as having no
        # origin.
        return None


def _cookie(scope: Scope, name: str) -> str | None:
    for key, value in scope["headers"]:
        if key == b"cookie":
            # Parsed as Django does it; the standard library's SimpleCookie takes seconds for 8 KiB of "=".
            found = parse_cookie(value.decode("latin-1")).get(name)
            if found is not None:
                return found
    return None
