"""Filters that several lists share."""

from django.utils.translation import gettext_lazy as _

from controlplane.access import visible_projects
from controlplane.models import Cluster
from dashboards.lists.table import Filter, named

NAME_CONTAINS = Filter("q", _("Name contains"), lambda rows, text: rows.filter(name__icontains=text))
OF_PROJECT = Filter(
    "project",
    _("Any project"),
    lambda rows, name: rows.filter(project__name=name),
    named(visible_projects),
)
OF_CLUSTER = Filter(
    "cluster",
    _("Any cluster"),
    lambda rows, name: rows.filter(cluster__name=name),
    named(lambda actor: Cluster.objects.filter(detached_at=None)),
)
