"""The page of the audit log."""

from django.http import HttpRequest, HttpResponseBase

from controlplane.access import Actor, require_admin
from controlplane.models import AuditEntry
from dashboards.lists.audit import AUDIT
from dashboards.lists.table import list_page
from dashboards.pages.base_page import show, signed_in


@signed_in
def audit(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show who changed what, newest first. For admins only."""
    require_admin(actor)
    page = list_page(AUDIT, actor, AuditEntry.objects.all(), request.GET.dict())
    return show(request, actor, "dashboards/audit.html", {"page": page})
