"""Confirmation questions before a member is removed, an account is locked or changed, or a token is revoked."""

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from controlplane.models import Project, Token, User
from dashboards import formats
from dashboards.pages.asking import Question
from dashboards.reads.users import live_tokens, unfinished_jobs

# Verbs on users that ask for confirmation; the others act at once.
ASKED = ("lock", "promote", "demote")


def about_removal(project: Project, user: User) -> Question:
    """Return the question that is asked before a member is removed from a project."""
    names = {"user": user.username, "project": project.name}
    return Question(
        title=_("Remove {user} from {project}?").format(**names),
        sentences=[
            _(
                "{user} can no longer see {project}, its jobs and their logs. An owner can add {user} again."
            ).format(**names),
            jobs_stay(user, project),
        ],
        back=reverse("project", args=[project.name]),
        do=_("Remove {user}").format(**names),
        fields=[("user", user.username)],
    )


def about_user(user: User, verb: str) -> Question:
    """Return the question that is asked before `verb` ("lock", "promote" or "demote") is applied to a user."""
    titles = {
        "lock": _("Lock {user}?"),
        "promote": _("Make {user} an admin?"),
        "demote": _("Remove the admin rights of {user}?"),
    }
    labels = {"lock": _("Lock the account"), "promote": _("Make admin"), "demote": _("Take admin away")}
    return Question(
        title=titles[verb].format(user=user.username),
        sentences=_consequences(user, verb),
        back=reverse("user", args=[user.username]),
        do=labels[verb],
        is_destructive=verb != "promote",
    )


def about_token(token: Token) -> Question:
    """Return the question that is asked before a token is revoked."""
    return Question(
        title=_("Revoke {name}?").format(name=token.name),
        sentences=[
            _(
                "Programs that use the token {prefix}… are refused at once. A revoked token cannot be restored."
            ).format(prefix=token.prefix),
            _last_used(token),
        ],
        back=reverse("tokens"),
        do=_("Revoke the token"),
    )


def jobs_stay(user: User, project: Project | None = None) -> str:
    """Return a sentence with the numbers of a user's unfinished jobs, which continue; in one project, None for
    all."""
    running, waiting = unfinished_jobs(user, project)
    if not running + waiting:
        return (
            _("{user} has no unfinished jobs there.").format(user=user.username)
            if project
            else _("{user} has no unfinished jobs.").format(user=user.username)
        )
    parts = [
        text.format(count=count)
        for text, count in (
            (
                ngettext(
                    "{count} job that holds GPUs or is starting",
                    "{count} jobs that hold GPUs or are starting",
                    running,
                ),
                running,
            ),
            (ngettext("{count} job that waits", "{count} jobs that wait", waiting), waiting),
        )
        if count
    ]
    return _("Not stopped: {jobs} of {user}. Stop them first if you do not want them to continue.").format(
        jobs=_(" and ").join(parts), user=user.username
    )


def _consequences(user: User, verb: str) -> list[str]:
    if verb == "promote":
        return [_("Admins see and change every project, node, cluster and user.")]
    if verb == "demote":
        return [_("{user} keeps only what the roles in projects allow.").format(user=user.username)]
    tokens = live_tokens(user)
    if not tokens:
        out = _("{user} is signed out everywhere until the account is unlocked.").format(user=user.username)
        return [out, jobs_stay(user)]
    refused = ngettext(
        "{user} is signed out everywhere, and {count} API token is refused, until the account is unlocked.",
        "{user} is signed out everywhere, and {count} API tokens are refused, until the account is unlocked.",
        tokens,
    )
    return [refused.format(user=user.username, count=tokens), jobs_stay(user)]


def _last_used(token: Token) -> str:
    if token.last_used_at is None:
        return _("It was never used.")
    seconds = (timezone.now() - token.last_used_at).total_seconds()
    return _("It was last used {ago}.").format(ago=formats.ago(seconds))
