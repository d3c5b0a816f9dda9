"""Users, tokens and the link of the first admin."""

import os
from collections.abc import Callable
from datetime import timedelta
from unittest import mock

import pytest
from django.core.management import call_command
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, Forbidden
from controlplane.actions.accounts import (
    create_setup_link,
    create_user,
    edit_user,
    is_setup_link_open,
    issue_token,
    revoke_token,
    token_owner,
    use_setup_link,
)
from controlplane.actions.errors import Conflict, Invalid
from controlplane.models import AuditEntry, SetupLink, Token, User

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"


def test_the_setup_link_works_once():
    secret = create_setup_link()
    assert secret
    user = use_setup_link(secret, "first", PASSWORD)
    assert user.is_admin
    with pytest.raises(Conflict):
        use_setup_link(secret, "second", PASSWORD)
    assert create_setup_link() is None


def test_a_weak_password_leaves_the_setup_link_open():
    secret = create_setup_link()
    with pytest.raises(Invalid):
        use_setup_link(secret, "first", "12345")
    assert use_setup_link(secret, "first", PASSWORD).username == "first"


def test_an_earlier_setup_link_is_void():
    old = create_setup_link()
    create_setup_link()
    with pytest.raises(Conflict):
        use_setup_link(old, "first", PASSWORD)


def by_action() -> None:
    create_user("first", PASSWORD, actor=SYSTEM, is_admin=True)


def by_promotion() -> None:
    edit_user(create_user("first", PASSWORD, actor=SYSTEM), actor=SYSTEM, is_admin=True)


def by_command() -> None:
    with mock.patch.dict(os.environ, {"DJANGO_SUPERUSER_PASSWORD": PASSWORD}):
        call_command("createsuperuser", username="first", interactive=False, verbosity=0)


@pytest.mark.parametrize("make_admin", [by_action, by_promotion, by_command])
def test_a_setup_link_ends_with_the_first_admin_however_made(make_admin: Callable[[], None]):
    secret = create_setup_link()
    make_admin()
    with pytest.raises(Conflict):
        use_setup_link(secret, "second", PASSWORD)
    assert not is_setup_link_open(secret)
    assert not SetupLink.objects.exists()
    assert [user.username for user in User.objects.filter(is_admin=True)] == ["first"]


def test_a_link_that_an_earlier_version_left_goes_at_the_start():
    create_setup_link()
    User.objects.create_user("first", PASSWORD, is_admin=True)
    assert create_setup_link() is None
    assert not SetupLink.objects.exists()


def test_a_setup_link_lives_for_a_day():
    secret = create_setup_link()
    SetupLink.objects.update(created_at=timezone.now() - timedelta(hours=23, minutes=59))
    assert is_setup_link_open(secret)
    SetupLink.objects.update(created_at=timezone.now() - timedelta(hours=24))
    assert not is_setup_link_open(secret)
    with pytest.raises(Conflict):
        use_setup_link(secret, "first", PASSWORD)


def test_tokens_are_stored_as_digests_and_end_at_once(cast):
    token, secret = issue_token(cast.ana, "laptop", actor=cast.actor("ana"))
    assert secret not in str(Token.objects.values().get(pk=token.pk))
    assert token_owner(secret, timezone.now()).user == cast.ana
    revoke_token(token, actor=cast.actor("ana"))
    assert token_owner(secret, timezone.now()) is None


def test_an_expired_token_and_a_locked_user_are_nobody(cast):
    token, secret = issue_token(cast.ben, "laptop", actor=cast.actor("ben"))
    assert token_owner(secret, token.expires_at) is None
    edit_user(cast.ben, actor=cast.actor("root"), is_active=False)
    assert token_owner(secret, timezone.now()) is None


def test_nobody_makes_tokens_for_others(cast):
    with pytest.raises(Forbidden):
        issue_token(cast.root, "stolen", actor=cast.actor("ana"))


def test_the_last_admin_stays(cast):
    with pytest.raises(Conflict):
        edit_user(cast.root, actor=cast.actor("root"), is_admin=False)
    assert User.objects.get(pk=cast.root.pk).is_admin


def test_only_admins_make_users(cast):
    with pytest.raises(Forbidden):
        create_user("dora", PASSWORD, actor=cast.actor("ana"))
    create_user("dora", PASSWORD, actor=cast.actor("root"))
    assert AuditEntry.objects.filter(verb="user.create", object_name="dora", actor="root").exists()
    with pytest.raises(Conflict):
        create_user("dora", PASSWORD, actor=SYSTEM)


def test_a_read_only_token_cannot_make_a_stronger_one(cast):
    actor = Actor(user=cast.ana, is_read_only=True)
    with pytest.raises(Forbidden):
        issue_token(cast.ana, "stronger", actor=actor)
