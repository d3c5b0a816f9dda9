"""Leases for work that only one process at a time may do."""

from django.db import models
from django.utils import timezone


class Lease(models.Model):
    """The right of one process to do some work alone until `expires_at`, by the database's clock. `token`: the
    holder's, "" when free. See controlplane/loop/claims.py."""

    name = models.CharField(max_length=50, primary_key=True)
    token = models.CharField(max_length=32, blank=True, default="")
    expires_at = models.DateTimeField(default=timezone.now)
    # When a holder last completed its work; read by /readyz.
    completed_at = models.DateTimeField(null=True)
