"""Filters that several lists share."""

from django.utils.translation import gettext_lazy as _

from controlplane.access import visible_projects
from controlplane.models import Cluster
from dashboards.lists.table import Filter, by, named

NAME_CONTAINS = Filter("q", _("Name contains"), by("name__icontains"))
OF_PROJECT = Filter("project", _("Any project"), by("project__name"), named(visible_projects))
OF_CLUSTER = Filter(
    "cluster",
    _("Any cluster"),
    by("cluster__name"),
    named(lambda actor: Cluster.objects.filter(detached_at=None)),
)
