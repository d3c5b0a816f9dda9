"""Actions on users and their tokens, and the setup link of the first admin."""

import hashlib
import secrets
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, Forbidden, require_admin, require_write
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, Invalid, invalid
from controlplane.fields import FieldError
from controlplane.models import Event, SetupLink, Token, User
from controlplane.models.prepared import prepared

TOKEN_PREFIX = "yard_"
TOKEN_DAYS = 90
# The admin of TRAINYARD_BOOTSTRAP_TOKEN; it is no person, so it does not count as the first admin.
BOOTSTRAP = "bootstrap"
TOKEN_MOST_DAYS = 365
# The lengths of the columns: PostgreSQL refuses longer values with an error.
NAME_MOST, EMAIL_MOST = 150, 254
SETUP_LINK_LIFE = timedelta(hours=24)


def digest_of(secret: str) -> str:
    """Return the unsalted SHA-256 digest under which a secret is stored. Safe only for secrets of 256 random bits,
    never for passwords."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_user(
    username: str, password: str | None, *, actor: Actor, is_admin: bool = False, email: str = ""
) -> User:
    """Create a user; with `password` None it can sign in with API tokens only. Hashing takes about a second, so call
    it outside transactions. Raise Forbidden unless the actor is an admin, Invalid for an invalid name, e-mail address
    or password, Conflict if the name is taken."""
    return save_new_user(
        new_user(username, password, actor=actor, is_admin=is_admin, email=email), actor=actor
    )


def new_user(
    username: str, password: str | None, *, actor: Actor, is_admin: bool = False, email: str = ""
) -> User:
    """Validate and return an unsaved user with a hashed password; None: it can sign in with API tokens only. Hashing
    takes about a second, so call it outside transactions, which would block other writers. Raise Forbidden unless the
    actor is an admin, Invalid for an invalid name, e-mail address or password."""
    require_admin(actor)
    if not username.strip() or not username.isprintable() or "/" in username:
        raise invalid("/username", "bad_username", "Use printable characters without a slash.")
    _check_lengths(username, email)
    user = User(username=username, email=email, is_admin=is_admin)
    if password is not None:
        require_strong_password(password, user)
    user.set_password(password)
    return user


def save_new_user(user: User, *, actor: Actor) -> User:
    """Save the user that `new_user` returned, with an audit row and an event. Raise Conflict if the name is taken. An
    admin closes all setup links."""
    username = user.username
    try:
        with transaction.atomic():
            user.save()
            _close_setup_links(user)
            write_audit(actor, "user.create", "user", username, after={"is_admin": user.is_admin})
            Event.objects.append([Event(kind="user.created", actor=actor.name, message=username)])
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a user named {username} already.") from error
    return user


def edit_user(
    user: User, *, actor: Actor, is_admin: bool | None = None, is_active: bool | None = None
) -> User:
    """Change a user's site role, or lock or unlock the account; None leaves a value unchanged. Raise Forbidden
    unless the actor is an admin, Conflict if no active admin would be left."""
    require_admin(actor)
    before = {"is_admin": user.is_admin, "is_active": user.is_active}
    user.is_admin = user.is_admin if is_admin is None else is_admin
    user.is_active = user.is_active if is_active is None else is_active
    with transaction.atomic():
        user.save(update_fields=["is_admin", "is_active"])
        _close_setup_links(user)
        if not User.objects.filter(is_admin=True, is_active=True).exists():
            raise Conflict("last_admin", "This is the last active admin; make another one first.")
        after = {"is_admin": user.is_admin, "is_active": user.is_active}
        write_audit(actor, "user.edit", "user", user.username, before=before, after=after)
        Event.objects.append([Event(kind="user.edited", actor=actor.name, message=user.username)])
    return user


def require_strong_password(password: str, user: User) -> None:
    """Raise Invalid with all reasons if `password` breaks Django's AUTH_PASSWORD_VALIDATORS, for example because it
    is short or similar to the user's name."""
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(*(FieldError("/password", "weak_password", text) for text in error.messages)) from error


def issue_token(
    user: User, name: str, *, actor: Actor, days: int = TOKEN_DAYS, is_read_only: bool = False
) -> tuple[Token, str]:
    """Return a new token of `user`, valid for `days`, and its secret, which is not stored and cannot be shown again.
    Raise Forbidden for a read-only actor, or for another user's token unless the actor is an admin; Invalid for
    `days` outside 1 to TOKEN_MOST_DAYS."""
    require_write(actor)
    if actor.user is not None and actor.user.pk != user.pk and not actor.is_admin:
        raise Forbidden("Only an admin may create a token for another user.")
    if not 1 <= days <= TOKEN_MOST_DAYS:
        raise invalid("/days", "out_of_range", f"A token lives from 1 to {TOKEN_MOST_DAYS} days.")
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with transaction.atomic():
        token = Token.objects.create(
            user=user,
            name=name,
            prefix=secret[:12],
            digest=digest_of(secret),
            is_read_only=is_read_only,
            expires_at=timezone.now() + timedelta(days=days),
        )
        write_audit(actor, "token.issue", "user", user.username, after={"token": token.prefix, "days": days})
        Event.objects.append([Event(kind="token.issued", actor=actor.name, message=user.username)])
    return token, secret


def revoke_token(token: Token, *, actor: Actor) -> None:
    """Revoke a token; safe to repeat. The web process then closes the live connections opened with it. Raise
    Forbidden for a read-only actor, or for another user's token unless the actor is an admin; Conflict for the
    bootstrap token, which its setting would restore."""
    require_write(actor)
    if actor.user is not None and actor.user.pk != token.user_id and not actor.is_admin:
        raise Forbidden("Only an admin may revoke another user's token.")
    if settings.BOOTSTRAP_TOKEN and token.digest == digest_of(settings.BOOTSTRAP_TOKEN):
        raise Conflict(
            "bootstrap_token",
            "It is set by TRAINYARD_BOOTSTRAP_TOKEN; take it out of the environment and restart.",
        )
    with transaction.atomic():
        Token.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now())
        write_audit(actor, "token.revoke", "user", token.user.username, before={"token": token.prefix})
        Event.objects.append([Event(kind="token.revoked", actor=actor.name, data={"token": token.pk})])


def token_owner(secret: str, now: datetime) -> Token | None:
    """Return the token with this secret, its `user` loaded. None if it is unknown, revoked or expired, or the user is
    inactive."""
    return next(iter(_live_tokens(digest_of(secret), now)), None)


@prepared
def _live_tokens(digest: str, now: datetime) -> QuerySet[Token]:
    """Return the valid token with this digest, if any. Prepared, because every REST call runs this query."""
    live = Token.objects.filter(digest=digest, revoked_at=None, expires_at__gt=now, user__is_active=True)
    return live.select_related("user")


def create_setup_link() -> str | None:
    """Revoke all setup links and return the secret of a new one, valid for SETUP_LINK_LIFE at /setup/<secret>. None
    without a new link if an admin exists."""
    secret = secrets.token_urlsafe(32)
    with transaction.atomic():
        SetupLink.objects.all().delete()
        if _has_admin():
            return None
        SetupLink.objects.create(digest=digest_of(secret))
    return secret


def is_setup_link_open(secret: str) -> bool:
    """Return whether the setup link with this secret is unused, the newest, and not expired. Deletes all links once
    an admin exists, also one created by `manage.py createsuperuser`."""
    if _has_admin():
        SetupLink.objects.all().delete()
    return _open_links(secret).exists()


def use_setup_link(secret: str, username: str, password: str) -> User:
    """Use a setup link up and create the first admin. Hashes the password, so call it outside transactions.
    Raise Conflict if an admin exists or the link is used, expired or unknown; Invalid for an invalid name or
    weak password."""
    if not _open_links(secret).exists():
        raise _link_used()
    user = new_user(username, password, actor=SYSTEM, is_admin=True)
    with transaction.atomic():
        claimed = _open_links(secret).update(used_at=timezone.now())
        if claimed != 1 or _has_admin():
            raise _link_used()
        return save_new_user(user, actor=SYSTEM)


def _link_used() -> Conflict:
    detail = "This set-up link has expired, was used, or is not the newest; start again for another."
    return Conflict("link_used", detail)


def _open_links(secret: str) -> QuerySet[SetupLink]:
    since = timezone.now() - SETUP_LINK_LIFE
    return SetupLink.objects.filter(digest=digest_of(secret), used_at=None, created_at__gt=since)


def _has_admin() -> bool:
    """Return whether an admin other than the bootstrap token's account exists."""
    return User.objects.filter(is_admin=True).exclude(username=BOOTSTRAP).exists()


def _close_setup_links(user: User) -> None:
    """Revoke all setup links if `user` is an admin. Call it in the transaction that creates or promotes the user."""
    if user.is_admin:
        SetupLink.objects.all().delete()


def _check_lengths(username: str, email: str) -> None:
    """Raise Invalid for values longer than their columns: PostgreSQL would raise an error instead."""
    if len(username) > NAME_MOST:
        raise invalid("/username", "too_long", f"At most {NAME_MOST} characters.")
    if len(email) > EMAIL_MOST:
        raise invalid("/email", "too_long", f"At most {EMAIL_MOST} characters.")
