"""From a secret to who it belongs to. REST and the live feed both ask here."""

import hmac
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db.models import Q

from controlplane.access import Actor
from controlplane.actions.accounts import digest_of, token_owner
from controlplane.models import Token, User

BOOTSTRAP = "bootstrap"
_USED_GRAIN = timedelta(minutes=5)  # how exact last_used_at is; keeps reads from becoming writes


def actor_of_secret(secret: str, now: datetime, *, address: str = "", request_id: str = "") -> Actor | None:
    """Return who a bearer secret stands for; None when it is unknown, revoked, expired or its user is locked."""
    if _is_bootstrap(secret):
        return Actor(user=bootstrap_user(), token_prefix=BOOTSTRAP, address=address, request_id=request_id)
    token = token_owner(secret, now)
    if token is None:
        return None
    _note_use(token, now)
    return Actor(
        user=token.user,
        token_prefix=token.prefix,
        address=address,
        request_id=request_id,
        is_read_only=token.is_read_only,
    )


def bootstrap_user() -> User:
    """Return the admin whom TRAINYARD_BOOTSTRAP_TOKEN stands for, made on first use; it has no password."""
    found = User.objects.filter(username=BOOTSTRAP).first()
    if found is not None:
        return found
    fields = {"is_admin": True, "password": make_password(None)}
    return User.objects.get_or_create(username=BOOTSTRAP, defaults=fields)[0]


def _is_bootstrap(secret: str) -> bool:
    """Compare digests: constant time, whatever the lengths."""
    expected = settings.BOOTSTRAP_TOKEN
    return bool(expected) and hmac.compare_digest(digest_of(secret), digest_of(expected))


def _note_use(token: Token, now: datetime) -> None:
    stale = now - _USED_GRAIN
    if token.last_used_at is None or token.last_used_at < stale:
        unnoted = Q(last_used_at=None) | Q(last_used_at__lt=stale)
        Token.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)
