"""Leases: named locks in the database. A conditional UPDATE claims one with a token, and the database's clock decides
when it expires."""

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache

from django.db.models import QuerySet
from django.db.models.functions import Now

from controlplane.loop.claim_tokens import new_token
from controlplane.models import Lease
from controlplane.models.prepared import Rows, Values, prepared, prepared_update

COLLECT_LEASE = "collect"
# After a longer pause in collecting telemetry it is unknown whether jobs were idle.
WATCH_GAP_SECONDS = 5.0
# A new lease is created as expired, so that it is then claimed by the same guarded UPDATE as any other.
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def claim(name: str, seconds: int) -> str | None:
    """Claim a lease for `seconds`. Return the token for it, None if another process holds it."""
    token = new_token()
    if _take(name, token, seconds):
        return token
    _, is_new = Lease.objects.get_or_create(name=name, defaults={"expires_at": LONG_AGO})
    return token if is_new and _take(name, token, seconds) else None


def claim_all(names: Collection[str], seconds: int) -> tuple[str, set[str]]:
    """Claim those of these leases that are free, for `seconds`, by one statement. Return the token, and the names of
    the leases that it holds."""
    token = new_token()
    free = Lease.objects.filter(name__in=names, expires_at__lte=Now())
    count = free.update(token=token, expires_at=Now() + timedelta(seconds=seconds))
    return token, set(names) if count == len(names) else _held_by(token)


def renew(name: str, token: str, seconds: int) -> bool:
    """Extend a lease that this token holds, to `seconds` from now. Return False if it has expired or another token
    has it."""
    return _renewal(seconds)(name, token) == 1


def extend(name: str, token: str, seconds: int) -> bool:
    """Extend a lease even if it has expired, to `seconds` from now. Return False if another token has claimed it
    since."""
    ours = Lease.objects.filter(name=name, token=token)
    return ours.update(expires_at=Now() + timedelta(seconds=seconds)) == 1


def extend_all(names: Collection[str], token: str, seconds: int) -> int:
    """Extend those of these leases that this token still has, as `extend` does; return how many these are."""
    ours = Lease.objects.filter(name__in=names, token=token)
    return ours.update(expires_at=Now() + timedelta(seconds=seconds))


def keep(name: str, token: str, seconds: int) -> str | None:
    """Extend a lease to `seconds` from now; if it has expired and is free, claim it again. Return the token to use
    from now on, None if another process has the lease."""
    return token if renew(name, token, seconds) else claim(name, seconds)


def release(name: str, token: str, *, is_complete: bool) -> None:
    """Release a lease, if this token still has it. `is_complete`: also record that its work is done now (see
    `is_fresh`)."""
    if is_complete:
        _complete(name, token)
    else:
        _free(name, token)


def release_all(names: Collection[str], token: str, *, is_complete: bool) -> None:
    """Release those of these leases that the token still has, as `release` does."""
    completed = {"completed_at": Now()} if is_complete else {}
    Lease.objects.filter(name__in=names, token=token).update(token="", expires_at=Now(), **completed)


@prepared_update
def note_complete(name: str) -> tuple[QuerySet[Lease], Values]:
    """Record that the work of a lease is done now, unless another process has the lease."""
    return Lease.objects.filter(name=name, expires_at__lte=Now()), {"completed_at": Now()}


def is_fresh(name: str, seconds: float) -> bool:
    """Return whether the work of the lease `name` was recorded as done within the last `seconds`."""
    return bool(_completion(seconds)(name))


def _held_by(token: str) -> set[str]:
    return set(Lease.objects.filter(token=token).values_list("name", flat=True))


def _take(name: str, token: str, seconds: int) -> bool:
    return _claim(seconds)(name, token) == 1


# Compiled once for each length of a lease, of which there are few: the loop claims and releases leases every second.
@cache
def _claim(seconds: int) -> Callable[[str, str], int]:
    @prepared_update
    def take(name: str, token: str) -> tuple[QuerySet[Lease], Values]:
        free = Lease.objects.filter(name=name, expires_at__lte=Now())
        return free, {"token": token, "expires_at": Now() + timedelta(seconds=seconds)}

    return take


@cache
def _renewal(seconds: int) -> Callable[[str, str], int]:
    @prepared_update
    def renew(name: str, token: str) -> tuple[QuerySet[Lease], Values]:
        ours = Lease.objects.filter(name=name, token=token, expires_at__gt=Now())
        return ours, {"expires_at": Now() + timedelta(seconds=seconds)}

    return renew


@cache
def _completion(seconds: float) -> Callable[[str], Sequence[object]]:
    @prepared
    def completed(name: str) -> Rows[Lease]:
        recent = Lease.objects.filter(name=name, completed_at__gte=Now() - timedelta(seconds=seconds))
        return recent.values_list("name")

    return completed


@prepared_update
def _complete(name: str, token: str) -> tuple[QuerySet[Lease], Values]:
    ours = Lease.objects.filter(name=name, token=token)
    return ours, {"token": "", "expires_at": Now(), "completed_at": Now()}


@prepared_update
def _free(name: str, token: str) -> tuple[QuerySet[Lease], Values]:
    return Lease.objects.filter(name=name, token=token), {"token": "", "expires_at": Now()}
