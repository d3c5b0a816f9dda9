"""Navigation entries of this app's pages."""

from django.utils.translation import gettext_noop

from controlplane.access import Actor
from controlplane.models import Node, Project
from dashboards.pages.navigation import NavigationEntry
from dashboards.reads.base_page import unfinished_jobs


def _projects(_: Actor) -> int:
    return Project.objects.count()


def _nodes(_: Actor) -> int:
    return Node.objects.count()


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
    NavigationEntry("users", gettext_noop("Users"), 80, heading=gettext_noop("Admin"), for_admins=True),
    NavigationEntry("clusters", gettext_noop("Clusters"), 90, heading=gettext_noop("Admin"), for_admins=True),
)
