"""Change one's own password, or another user's as an admin."""

from django.contrib.auth.hashers import make_password
from django.db import transaction
from django.utils import timezone

from controlplane.access import Actor, Forbidden, require_admin, require_write
from controlplane.actions.accounts import BOOTSTRAP, require_strong_password
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import invalid
from controlplane.actions.sign_in import check_password
from controlplane.models import Event, Token, User

WRONG = "This is not your current password. An admin can set a new one for you."
NONE_YET = "This account has no password yet; an admin sets the first one."


def set_password(
    user: User, password: str, *, actor: Actor, current: str = "", keep_tokens: bool = False
) -> int:
    """Set a user's password and return how many API tokens were revoked; effects as `save_password`. A user gives the
    `current` one; an admin sets another user's without. Hashes, so call it outside transactions. Raise Forbidden for
    a read-only actor, for one's own account without a password, and for another user's unless the actor is an admin;
    Invalid for a wrong current or weak new password, TooManyAttempts after several wrong ones."""
    hashed = hash_password(user, password, actor=actor, current=current)
    return save_password(user, hashed, actor=actor, keep_tokens=keep_tokens)


def hash_password(user: User, password: str, *, actor: Actor, current: str = "") -> str:
    """Check that the actor may set this password, and return its hash. Hashing takes about a second, so call it
    outside transactions, which would block other writers. Raises what `set_password` raises."""
    require_write(actor)
    if actor.user is None or actor.user.pk != user.pk:
        require_admin(actor)
    else:
        _require_current(user, current, actor)
    require_strong_password(password, user)
    return make_password(password)


def save_password(user: User, hashed: str, *, actor: Actor, keep_tokens: bool = False) -> int:
    """Store the hash that `hash_password` returned; return how many API tokens were revoked.

    Ends all sessions of the user (the caller renews the session of its own request). Unless `keep_tokens`, revokes
    all its API tokens except the actor's own and the bootstrap token, because a person who had the old password may
    have created them.
    """
    user.password = hashed
    with transaction.atomic():
        # Every session of the user depends on the stored hash, so a new one ends them all (also sockets, see
        # live.identity).
        user.save(update_fields=["password"])
        revoked = 0 if keep_tokens else _revoke_tokens(user, actor)
        write_audit(actor, "user.set_password", "user", user.username, after={"revoked_tokens": revoked})
        Event.objects.append([Event(kind="user.edited", actor=actor.name, message=user.username)])
    return revoked


def _require_current(user: User, current: str, actor: Actor) -> None:
    if not user.has_usable_password():
        raise Forbidden(NONE_YET)
    if check_password(user.username, current, actor.address) is None:
        raise invalid("/current_password", "wrong_password", WRONG)


def _revoke_tokens(user: User, actor: Actor) -> int:
    tokens = Token.objects.filter(user=user, revoked_at=None).exclude(
        name=BOOTSTRAP, user__username=BOOTSTRAP
    )
    if actor.user is not None and actor.user.pk == user.pk and actor.token_prefix:
        tokens = tokens.exclude(prefix=actor.token_prefix)
    return tokens.update(revoked_at=timezone.now())
