"""Sign-in: find the user for a token's secret, or for a name and a password."""

import hmac
import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.hashers import make_password
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.access import Actor
from controlplane.actions.accounts import BOOTSTRAP, digest_of, token_owner
from controlplane.http.client_address import address_key
from controlplane.http.throttle import Throttle, TooManyAttempts
from controlplane.http.unknown_tokens import forget_unknown_tokens
from controlplane.models import Token, User

logger = logging.getLogger(__name__)

# Attempts with one name from one address: enough for mistyped passwords, too few for guessing one.
ATTEMPTS_PER_MINUTE = 5
_attempts = Throttle(ATTEMPTS_PER_MINUTE, 60)
_attempts_by_address = Throttle(6 * ATTEMPTS_PER_MINUTE, 60)
# In effect unlimited: the token is registered again at every start, and removing the setting revokes it.
_BOOTSTRAP_DAYS = 3650
# The precision of last_used_at, which is coarse so that reads rarely cause writes.
_USED_GRAIN = timedelta(minutes=5)


def check_password(username: str, password: str, address: str) -> User | None:
    """Return the user with this name and password; None if they are wrong or the account is inactive. Raise
    TooManyAttempts, without checking the password, after too many wrong attempts from one `address`, or with one name
    from it; pages and REST share these limits."""
    place = address_key((address, 0))
    key = (username.casefold(), place)
    try:
        _attempts_by_address.attempt(place)
        _attempts.attempt(key)
    except TooManyAttempts:
        logger.warning("a sign-in as %s from %s was refused: too many attempts", _known(username), address)
        raise
    user = authenticate(username=username, password=password)
    if not isinstance(user, User):
        logger.warning("a sign-in as %s from %s was refused", _known(username), address)
        return None
    _attempts.forgive(key)
    _attempts_by_address.take_back(place)
    return user


def forget_attempts() -> None:
    """Reset all limits of wrong attempts, for tests."""
    forget_unknown_tokens()
    _attempts.clear()
    _attempts_by_address.clear()


def actor_of_secret(secret: str, now: datetime, *, address: str = "", request_id: str = "") -> Actor | None:
    """Return the actor of an API token's secret; None if the token is unknown, revoked or expired, or its user is
    inactive. `address` and `request_id` are stored in the actor for the audit log. Updates `last_used_at` at most
    every 5 minutes, and registers the bootstrap token again if its row is missing."""
    token = token_owner(secret, now)
    if token is None and _is_bootstrap(secret):
        register_bootstrap_token()
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


def register_bootstrap_token() -> None:
    """Make TRAINYARD_BOOTSTRAP_TOKEN the only valid token of the admin `bootstrap`, who has no password; without the
    setting, revoke that token. Run at every start, so that a changed setting takes effect; safe to repeat."""
    digest = digest_of(settings.BOOTSTRAP_TOKEN) if settings.BOOTSTRAP_TOKEN else ""
    now = timezone.now()
    with transaction.atomic():
        earlier = Token.objects.filter(user__username=BOOTSTRAP, name=BOOTSTRAP, revoked_at=None)
        earlier.exclude(digest=digest).update(revoked_at=now)
        if not digest:
            return
        fields = {"is_admin": True, "password": make_password(None)}
        user, _ = User.objects.get_or_create(username=BOOTSTRAP, defaults=fields)
        expires_at = now + timedelta(days=_BOOTSTRAP_DAYS)
        values = {
            "user": user,
            "name": BOOTSTRAP,
            "prefix": BOOTSTRAP,
            "expires_at": expires_at,
            "revoked_at": None,
        }
        Token.objects.update_or_create(digest=digest, defaults=values)


def _known(username: str) -> str:
    """Return the name as it may be logged. A name without a user is hidden, because users sometimes type a password
    into that field."""
    return repr(username) if User.objects.filter(username=username).exists() else "an unknown user"


def _is_bootstrap(secret: str) -> bool:
    """Return whether the secret is the bootstrap token. Compares digests, so that the time does not depend on
    the secret."""
    expected = settings.BOOTSTRAP_TOKEN
    return bool(expected) and hmac.compare_digest(digest_of(secret), digest_of(expected))


def _note_use(token: Token, now: datetime) -> None:
    stale = now - _USED_GRAIN
    if token.last_used_at is None or token.last_used_at < stale:
        unnoted = Q(last_used_at=None) | Q(last_used_at__lt=stale)
        Token.objects.filter(unnoted, pk=token.pk).update(last_used_at=now)
