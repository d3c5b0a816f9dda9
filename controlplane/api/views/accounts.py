"""The caller's identity, signing in, tokens and users."""

from typing import Any

from django.contrib.auth import update_session_auth_hash
from django.db.models import QuerySet
from django.utils import timezone

from controlplane import fields
from controlplane.access import Actor, Forbidden, NotVisible, require_admin
from controlplane.actions.accounts import (
    TOKEN_DAYS,
    TOKEN_MOST_DAYS,
    edit_user,
    issue_token,
    new_user,
    revoke_token,
    save_new_user,
)
from controlplane.actions.passwords import hash_password, save_password
from controlplane.actions.sign_in import check_password
from controlplane.api import query
from controlplane.api.bodies import BodyField, text_field
from controlplane.api.json_schema import BOOLEAN, STRING, nullable, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Filter, Listing, fields_parameter, paged, trimmed
from controlplane.api.problems import Problem
from controlplane.api.query import whole_id
from controlplane.api.schemas import TOKEN, USER
from controlplane.models import Membership, Token, User

LOGIN_TOKEN_DAYS = 30

_name = text_field(100, is_required=True)
_username = text_field(150, is_required=True)
_password = text_field(1000, is_required=True)
_switch = BodyField(fields.switch, BOOLEAN)
LOGIN = {"username": _username, "password": _password}
NEW_TOKEN = {
    "name": _name,
    "days": BodyField(
        fields.whole(1, TOKEN_MOST_DAYS),
        {"type": "integer", "minimum": 1, "maximum": TOKEN_MOST_DAYS, "default": TOKEN_DAYS},
    ),
    "is_read_only": _switch,
    "user": BodyField(fields.optional(fields.text(150)), nullable(STRING)),
}
NEW_USER = {
    "username": _username,
    "password": BodyField(fields.optional(fields.text(1000)), nullable(STRING)),
    "email": BodyField(fields.text(254), STRING),
    "is_admin": _switch,
}
_secret = text_field(1000)
USER_CHANGES = {
    "is_admin": _switch,
    "is_active": _switch,
    "password": _secret,
    "current_password": _secret,
    "keep_tokens": _switch,
}

TOKENS = Listing(
    TOKEN, {"id": ("id",)}, "-id", {"user": Filter("user__username__in", query.texts("Of these users."))}
)
USERS = Listing(
    USER,
    {"username": ("username",)},
    "username",
    {
        "username": Filter("username__in", query.texts("With these names.")),
        "is_admin": Filter("is_admin", query.switch("Only site admins, or only others.")),
        "is_active": Filter("is_active", query.switch("Unlocked or not.")),
    },
)


class Login(ApiView):
    """Exchange a user name and password for a token, without a credential. 401 does not show whether the name exists;
    429 after too many wrong attempts."""

    authentication_classes = ()
    permission_classes = ()

    @operation(
        "Exchange a name and password for a token", answer=ref("Token"), body=LOGIN, is_remembered=False
    )
    def post(self, call: Call) -> Answer:
        address = call.actor.address
        user = check_password(call.body["username"], call.body["password"], address)
        if user is None:
            # The same answer for an unknown name, so that a caller cannot try out which users exist.
            raise Problem(401, "wrong_credentials", "The name or the password is wrong.")
        actor = Actor(user=user, address=address, request_id=call.actor.request_id)
        token, secret = issue_token(user, "login", actor=actor, days=LOGIN_TOKEN_DAYS)
        return Answer(_token(token) | {"token": secret})


class Whoami(ApiView):
    """The authenticated user, with a role for each project of which the user is a member."""

    @operation("Who am I, with roles", answer=ref("Whoami"))
    def get(self, call: Call) -> Answer:
        user = _user_of(call.actor)
        roles = Membership.objects.filter(user=user).order_by("project__name")
        shown = {
            "username": user.username,
            "email": user.email,
            "is_admin": user.is_admin,
            "is_read_only": call.actor.is_read_only,
            "roles": dict(roles.values_list("project__name", "role")),
        }
        return Answer(shown, revision=shown)


class Tokens(ApiView):
    """The caller's tokens; for an admin, the tokens of all users. Revoked and expired ones are not listed."""

    @TOKENS.operation("List live tokens", "Token")
    def get(self, call: Call) -> Answer:
        return paged(
            call,
            _live_tokens(call.actor),
            TOKENS,
            fetch=list,
            shape=lambda rows: [_token(row) for row in rows],
        )

    @operation("Make a token; its secret is shown once", answer=ref("Token"), status=201, body=NEW_TOKEN)
    def post(self, call: Call) -> Answer:
        owner = _user_of(call.actor)
        if call.body.get("user") not in (None, owner.username):
            require_admin(call.actor)
            owner = _user_named(call.body["user"])
        token, secret = issue_token(
            owner,
            call.body["name"],
            actor=call.actor,
            days=call.body.get("days", TOKEN_DAYS),
            is_read_only=call.body.get("is_read_only", False),
        )
        return Answer(_token(token) | {"token": secret}, 201)


class TokenDetail(ApiView):
    """One token, by its id. 404 if it is revoked, expired, or another user's and the caller is no admin."""

    @operation("A token", answer=ref("Token"), query={"fields": fields_parameter(TOKEN)})
    def get(self, call: Call, token_id: str) -> Answer:
        token = _token_for(call.actor, token_id)
        return Answer(trimmed(call, _token(token)), revision=_token_revision(token))

    @operation("Revoke a token at once", answer={}, status=204)
    def delete(self, call: Call, token_id: str) -> Answer:
        token = call.require_match(_token_for(call.actor, token_id), _token_revision)
        revoke_token(token, actor=call.actor)
        return Answer(None, 204)


def _new_user(call: Call) -> User:
    """Return a valid, unsaved user from the body, with a hashed password. Hashing takes up to a second, so it runs
    before the transaction."""
    require_admin(call.actor)
    body = dict(call.body)
    return new_user(body.pop("username"), body.pop("password", None), actor=call.actor, **body)


def _hashed_password(call: Call, username: str) -> str | None:
    """Return the hash of the new password in the body; None if the body has none. Hashing takes up to a second, so it
    runs before the transaction."""
    user = _visible_user(call.actor, username)
    password = call.body.get("password")
    if password is None:
        return None
    return hash_password(user, password, actor=call.actor, current=call.body.get("current_password", ""))


class Users(ApiView):
    """The users. For admins only."""

    @USERS.operation("List users", "User")
    def get(self, call: Call) -> Answer:
        _require_site_admin(call.actor)
        rows = User.objects.all()
        return paged(call, rows, USERS, fetch=list, shape=lambda found: [_user(row) for row in found])

    @operation(
        "Create a user; without a password only tokens work",
        answer=ref("User"),
        status=201,
        body=NEW_USER,
        before=_new_user,
    )
    def post(self, call: Call) -> Answer:
        return Answer(_user(save_new_user(call.prepared, actor=call.actor)), 201)


class UserDetail(ApiView):
    """One user, by name. For admins, and for the user; 404 for others, which does not show whether the name exists."""

    @operation("A user", answer=ref("User"), query={"fields": fields_parameter(USER)})
    def get(self, call: Call, username: str) -> Answer:
        return _shown(call, _visible_user(call.actor, username))

    @operation(
        "Change the site role, lock an account or set a password",
        answer=ref("User"),
        body=USER_CHANGES,
        # Hashing takes long on purpose: in the transaction it would hold SQLite's write lock, and all writers wait.
        before=_hashed_password,
    )
    def patch(self, call: Call, username: str) -> Answer:
        user = call.require_match(_visible_user(call.actor, username), _user)
        changes = {name: value for name, value in call.body.items() if name in ("is_admin", "is_active")}
        if changes:
            edit_user(user, actor=call.actor, **changes)
        if (hashed := call.prepared) is not None:
            save_password(user, hashed, actor=call.actor, keep_tokens=call.body.get("keep_tokens", False))
            _keep_session(call, user)
        return _shown(call, user)


def _shown(call: Call, user: User) -> Answer:
    return Answer(trimmed(call, _user(user)), revision=_user(user))


def _keep_session(call: Call, user: User) -> None:
    """Keep the caller's session after a change of their own password, which ends all other sessions of theirs. Does
    nothing for a token, and for another user's password."""
    if not call.actor.token_prefix and call.actor.user == user:
        update_session_auth_hash(call.request._request, user)


def _user_of(actor: Actor) -> User:
    if actor.user is None:
        raise NotVisible("`system` is not a user account.")
    return actor.user


def _user_named(username: str) -> User:
    user = User.objects.filter(username=username).first()
    if user is None:
        raise _no_user(username)
    return user


def _visible_user(actor: Actor, username: str) -> User:
    # Not 403, which would show that the user exists.
    if not actor.is_admin and _user_of(actor).username != username:
        raise _no_user(username)
    return _user_named(username)


def _no_user(username: str) -> NotVisible:
    return NotVisible(f"There is no user named {username!r} that you can see.")


def _require_site_admin(actor: Actor) -> None:
    if not actor.is_admin:
        raise Forbidden("Only an admin may see the users.")


def _live_tokens(actor: Actor) -> QuerySet[Token]:
    live = Token.objects.select_related("user").filter(revoked_at=None, expires_at__gt=timezone.now())
    return live if actor.is_admin else live.filter(user=actor.user)


def _token_for(actor: Actor, token_id: str) -> Token:
    token = _live_tokens(actor).filter(pk=whole_id(token_id, "token")).first()
    if token is None:
        raise NotVisible("There is no such token of yours.")
    return token


def _token_revision(token: Token) -> Any:
    return [token.pk, token.revoked_at]


def _token(token: Token) -> dict[str, Any]:
    return {
        "id": token.pk,
        "user": token.user.username,
        "name": token.name,
        "prefix": token.prefix,
        "is_read_only": token.is_read_only,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "last_used_at": token.last_used_at,
    }


def _user(user: User) -> dict[str, Any]:
    return {
        "username": user.username,
        "email": user.email,
        "is_admin": user.is_admin,
        "is_active": user.is_active,
        "created_at": user.created_at,
    }
