"""Leases for work that one process at a time may do."""

from django.db import models
from django.utils import timezone


class Lease(models.Model):
    """A claim with a token and an expiry by the database's clock. See controlplane/loop/claims.py."""

    name = models.CharField(max_length=50, primary_key=True)
    token = models.CharField(max_length=32, blank=True, default="")
    expires_at = models.DateTimeField(default=timezone.now)
    # Last time a holder finished its work; /readyz reads it.
    completed_at = models.DateTimeField(null=True)
