"""One-time tickets that sign a browser in at a job's own host."""

import secrets
from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.actions.accounts import digest_of
from controlplane.config.service_hosts import ServiceAddress
from controlplane.models import ServiceTicket

TICKET_LIFE = timedelta(seconds=60)


def issue_service_ticket(session_key: str, address: ServiceAddress) -> str:
    """Return the secret of a ticket for one port of one job (`address`), which can be redeemed once within
    TICKET_LIFE. The caller checks that the session may use that port."""
    secret, now = secrets.token_urlsafe(32), timezone.now()
    with transaction.atomic():
        ServiceTicket.objects.filter(created_at__lte=now - TICKET_LIFE).delete()
        ServiceTicket.objects.create(
            digest=digest_of(secret), session_key=session_key, job_id=address.job_id, port=address.port
        )
    return secret


def redeem_service_ticket(secret: str, address: ServiceAddress) -> str | None:
    """Return the session key for which a ticket was issued, and use the ticket up. None if it is unknown, used,
    expired or for another port."""
    found = ServiceTicket.objects.filter(
        digest=digest_of(secret),
        job_id=address.job_id,
        port=address.port,
        created_at__gt=timezone.now() - TICKET_LIFE,
    )
    with transaction.atomic():
        ticket = found.first()
        if ticket is None or found.filter(pk=ticket.pk).delete()[0] != 1:
            return None
    return ticket.session_key
