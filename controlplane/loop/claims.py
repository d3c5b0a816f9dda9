"""The one lock idiom: claim by conditional UPDATE with a token and an expiry from the database's clock."""

import secrets
from datetime import UTC, datetime, timedelta

from django.db.models.functions import Now

from controlplane.models import Lease

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def claim(name: str, seconds: int) -> str | None:
    """Return a token when nobody holds the lease, else None. It ends by itself after `seconds`."""
    Lease.objects.get_or_create(name=name, defaults={"expires_at": LONG_AGO})
    token = secrets.token_hex(16)
    free = Lease.objects.filter(name=name, expires_at__lte=Now())
    return token if free.update(token=token, expires_at=Now() + timedelta(seconds=seconds)) == 1 else None


def renew(name: str, token: str, seconds: int) -> bool:
    """Extend a lease that is still ours. False when it expired and was taken."""
    ours = Lease.objects.filter(name=name, token=token, expires_at__gt=Now())
    return ours.update(expires_at=Now() + timedelta(seconds=seconds)) == 1


def release(name: str, token: str, observed_seq: int) -> None:
    """Give a lease back and note what its work had seen. A lease that was taken meanwhile stays as it is."""
    Lease.objects.filter(name=name, token=token).update(
        token="", expires_at=Now(), completed_at=Now(), observed_seq=observed_seq
    )
