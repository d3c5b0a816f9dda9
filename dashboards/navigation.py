"""Navigation entries of this app's pages."""

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from controlplane.access import Actor
from controlplane.models import Cluster, Node, Project, User
from dashboards.pages.navigation import NavigationEntry
from dashboards.reads.base_page import unfinished_jobs


def _projects(_actor: Actor) -> int:
    return Project.objects.count()


def _nodes(_actor: Actor) -> int:
    return Node.objects.count()


def _find_users(_actor: Actor, text: str, most: int) -> list[tuple[str, str, str]]:
    names = User.objects.filter(username__icontains=text).order_by("username")
    return [
        (name, _("user"), reverse("user", args=[name]))
        for name in names.values_list("username", flat=True)[:most]
    ]


def _find_clusters(_actor: Actor, text: str, most: int) -> list[tuple[str, str, str]]:
    names = Cluster.objects.filter(detached_at=None, name__icontains=text).order_by("name")
    return [
        (name, _("cluster"), reverse("cluster", args=[name]))
        for name in names.values_list("name", flat=True)[:most]
    ]


ADMIN = gettext_noop("Admin")
ENTRIES = (
    NavigationEntry("overview", gettext_noop("Overview"), 10),
    NavigationEntry(
        "jobs",
        gettext_noop("Jobs"),
        20,
        unfinished_jobs,
        gettext_noop("unfinished jobs that you may see"),
        gettext_noop("unfinished"),
    ),
    NavigationEntry("projects", gettext_noop("Projects"), 30, _projects, gettext_noop("projects")),
    NavigationEntry("nodes", gettext_noop("Nodes"), 40, _nodes, gettext_noop("nodes")),
    NavigationEntry("analytics", gettext_noop("Analytics"), 60),
    NavigationEntry("users", gettext_noop("Users"), 80, heading=ADMIN, for_admins=True, find=_find_users),
    NavigationEntry(
        "clusters", gettext_noop("Clusters"), 90, heading=ADMIN, for_admins=True, find=_find_clusters
    ),
    NavigationEntry("audit", gettext_noop("Audit"), 100, heading=ADMIN, for_admins=True),
)
