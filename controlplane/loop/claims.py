"""Leases: named locks that are claimed by a conditional UPDATE with a token and expire by the database's clock."""

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from django.db.models.functions import Now

from controlplane.loop.claim_tokens import new_token
from controlplane.models import Lease

COLLECT_LEASE = "collect"
# After a longer pause in collecting telemetry it is unknown whether jobs were idle.
WATCH_GAP_SECONDS = 5.0
# A new lease is created as expired, so that it is then claimed by the same guarded UPDATE as any other.
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def claim(name: str, seconds: int) -> str | None:
    """Return a token if the lease was free, else None. The lease expires after `seconds`."""
    token = new_token()
    if _take(name, token, seconds):
        return token
    _, is_new = Lease.objects.get_or_create(name=name, defaults={"expires_at": LONG_AGO})
    return token if is_new and _take(name, token, seconds) else None


def claim_all(names: Collection[str], seconds: int) -> tuple[str, set[str]]:
    """Claim the free ones of these leases by one statement; return the token, and the names that it holds now."""
    token = new_token()
    free = Lease.objects.filter(name__in=names, expires_at__lte=Now())
    count = free.update(token=token, expires_at=Now() + timedelta(seconds=seconds))
    return token, set(names) if count == len(names) else _held_by(token)


def renew(name: str, token: str, seconds: int) -> bool:
    """Extend a lease that this token still holds; return False once it has expired."""
    ours = Lease.objects.filter(name=name, token=token, expires_at__gt=Now())
    return ours.update(expires_at=Now() + timedelta(seconds=seconds)) == 1


def extend(name: str, token: str, seconds: int) -> bool:
    """Extend a lease that no other token has claimed since, even if it expired; return False once one has."""
    ours = Lease.objects.filter(name=name, token=token)
    return ours.update(expires_at=Now() + timedelta(seconds=seconds)) == 1


def keep(name: str, token: str, seconds: int) -> str | None:
    """Extend a lease; if it expired and no other token has it, claim it again. Return the token to use from
    now on, None if another process has the lease."""
    return token if renew(name, token, seconds) else claim(name, seconds)


def release(name: str, token: str, *, is_complete: bool) -> None:
    """Release a lease; with `is_complete`, also record that its work is completed now (see `is_fresh`). A lease that
    another token now holds is left unchanged."""
    completed = {"completed_at": Now()} if is_complete else {}
    Lease.objects.filter(name=name, token=token).update(token="", expires_at=Now(), **completed)


def release_all(names: Collection[str], token: str, *, is_complete: bool) -> None:
    """Release several leases, as `release` does."""
    completed = {"completed_at": Now()} if is_complete else {}
    Lease.objects.filter(name__in=names, token=token).update(token="", expires_at=Now(), **completed)


def note_complete(name: str) -> None:
    """Record that a lease's work is completed now, unless another process holds the lease."""
    Lease.objects.filter(name=name, expires_at__lte=Now()).update(completed_at=Now())


def is_fresh(name: str, seconds: float) -> bool:
    """Return whether the lease's work completed within the last `seconds`."""
    return Lease.objects.filter(name=name, completed_at__gte=Now() - timedelta(seconds=seconds)).exists()


def _held_by(token: str) -> set[str]:
    return set(Lease.objects.filter(token=token).values_list("name", flat=True))


def _take(name: str, token: str, seconds: int) -> bool:
    free = Lease.objects.filter(name=name, expires_at__lte=Now())
    return free.update(token=token, expires_at=Now() + timedelta(seconds=seconds)) == 1
