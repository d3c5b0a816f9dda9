"""Find users by name in order to add members.

User names are visible only to admins and fellow members, so the look-ups of project owners are rate limited
and audited, even in a dry run or without a result.
"""

from controlplane.access import Actor, project_for
from controlplane.actions.audit import write_lasting_audit
from controlplane.actions.errors import invalid
from controlplane.http.throttle import Throttle
from controlplane.models import Project, Role, User

# The shortest prefix, in characters: with one letter, 26 requests would list all users of a small site.
PREFIX_LEAST = 2
# Few, so that a look-up completes a name without listing the users.
NAMES_MOST = 10
# Look-ups by one owner per period: enough to add a class of 100 users in one request.
LOOKUPS, LOOKUP_SECONDS = 120, 600

_lookups = Throttle(LOOKUPS, LOOKUP_SECONDS)


def find_user(username: str, project: Project, *, actor: Actor) -> User | None:
    """Return the user with exactly this name, who is to be added to `project`; None if there is none. Unless the
    actor is an admin or the user is a member already, the look-up is audited and counted, and too many raise
    TooManyAttempts."""
    user = User.objects.filter(username=username).first()
    is_member = user is not None and project.memberships.filter(user=user).exists()
    if not actor.is_admin and not is_member:
        _note_lookup(actor, project, {"name": username, "found": user is not None})
    return user


def user_names_starting_with(prefix: str, project_name: str, *, actor: Actor) -> list[str]:
    """Return up to NAMES_MOST names of active users outside the project that start with `prefix`, ignoring case,
    sorted. Raise NotVisible if the actor cannot see the project, Forbidden unless owner or admin, Invalid for a
    prefix outside PREFIX_LEAST to 150 characters, TooManyAttempts after too many look-ups by an owner."""
    project = project_for(actor, project_name, needed=Role.OWNER)
    if not PREFIX_LEAST <= len(prefix) <= 150 or "\0" in prefix:
        raise invalid("?prefix", "bad_prefix", f"Give {PREFIX_LEAST} to 150 characters of the name.")
    users = User.objects.filter(username__istartswith=prefix, is_active=True)
    outside = users.exclude(memberships__project=project).order_by("username")
    names = list(outside.values_list("username", flat=True)[:NAMES_MOST])
    if not actor.is_admin:
        _note_lookup(actor, project, {"prefix": prefix, "found": len(names)})
    return names


def forget_lookups() -> None:
    """Reset the rate limits of look-ups, for tests."""
    _lookups.clear()


def _note_lookup(actor: Actor, project: Project, after: dict[str, object]) -> None:
    # Only look-ups by others than admins come here, and the system, which has no user, counts as an admin.
    assert actor.user is not None
    _lookups.attempt(actor.user.pk)
    write_lasting_audit(actor, "user.look_up", "project", project.name, after=after)
