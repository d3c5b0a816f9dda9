"""Find the queued jobs that cannot start because of a volume."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.utils import timezone

from controlplane.engines.kinds import engine_kind
from controlplane.models.prepared import Rows, prepared
from datasets.models import Snapshot, Volume, VolumeUse
from datasets.models.volumes import ONE_JOB, PENDING, READY
from datasets.queries.due_snapshots import due_jobs
from datasets.queries.volumes import missing_drivers
from jobs.lifecycle import ACTIVE_STATES, QUEUED

# How long a volume is kept from other jobs for a snapshot in trouble, which is tried again for hours, and for one of a
# cluster: its driver has the content long before the snapshot is ready to use.
TAKEN_WITHIN = timedelta(seconds=60)

_WAIT_COLUMNS = (
    "job_id",
    "volume_id",
    "volume__name",
    "volume__state",
    "volume__access_mode",
    "volume__storage_class",
    "job__project__cluster__engine",
    "is_read_only",
)


def volume_waits(cluster_id: int) -> Mapping[str, Mapping[str, Any]]:
    """Return the queued jobs of a cluster that cannot start because of a volume: by job id, the details of the hold
    reason, which are the volume's name and its state, its missing driver, the job that holds it, or, unless it
    only reads, the job whose snapshot of it is not taken yet."""
    return _waits(_queued_uses(cluster_id))


@prepared
def _queued_uses(cluster: int) -> Rows[VolumeUse]:
    queued = VolumeUse.objects.filter(job__state=QUEUED, job__project__cluster=cluster)
    return queued.values_list(*_WAIT_COLUMNS)


def waiting_jobs(jobs: Iterable[Any]) -> frozenset[str]:
    """Return those of the queued jobs that cannot start now because of a volume: not ready, held by another
    job or its snapshot, or claimed by an earlier one of these jobs. Locks the volumes until the transaction ends."""
    uses = VolumeUse.objects.filter(job__in=list(jobs)).order_by("job__submit_rank")
    wanted = list(uses.values_list("job_id", "volume_id", "volume__access_mode"))
    if not wanted:
        return frozenset()
    ids = {volume for _, volume, _ in wanted}
    # Locked in key order, as by every writer of several rows, so that writers cannot deadlock.
    list(Volume.objects.filter(pk__in=ids).order_by("pk").select_for_update(no_key=True).only("pk"))
    waiting, taken = set(_waits(list(uses.values_list(*_WAIT_COLUMNS)))), set()
    for job, volume, mode in wanted:
        if mode != ONE_JOB or str(job) in waiting:
            continue
        if volume in taken:
            waiting.add(str(job))
        taken.add(volume)
    return frozenset(waiting)


def _waits(wanted: Sequence[tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
    one_job = {row[1] for row in wanted if row[4] == ONE_JOB}
    holders = _holders(one_job) if one_job else {}
    free = one_job - holders.keys()
    awaited = _awaited_snapshots(free) if free else {}
    # A cluster's own storage class may have the same name as one configured here.
    missing = missing_drivers(row[5] for row in wanted if not engine_kind(row[6]).claims_volumes)
    found: dict[str, dict[str, Any]] = {}
    for job, volume, name, state, _, storage_class, engine, is_read_only in wanted:
        is_claim = engine_kind(engine).claims_volumes
        if state != READY:
            found.setdefault(str(job), {"volume": name, "volume_state": state})
        elif storage_class in missing and not is_claim:
            about = {"storage_class": storage_class, "driver": missing[storage_class]}
            found.setdefault(str(job), {"volume": name, **about})
        elif volume in holders and holders[volume][0] != job:
            holder_id, holder = holders[volume]
            held = {"volume": name, "held_by": holder, "held_by_job": str(holder_id)}
            # Kubernetes cannot change a claim's access mode, so that the suggested step is another.
            found.setdefault(str(job), held | ({"is_claim": "yes"} if is_claim else {}))
        elif volume in awaited and awaited[volume][0] != job and not is_read_only:
            found.setdefault(str(job), {"volume": name, "snapshot_for": awaited[volume][1]})
    return found


def _holders(volumes: Iterable[Any]) -> dict[Any, tuple[Any, str]]:
    has_pods = Q(job__pods__isnull=False, job__pods__released_at__isnull=True)
    # Its pods may be released before the loop has recorded that it ended, and what it was preempted or succeeded for.
    is_active = Q(job__state__in=ACTIVE_STATES)
    held = VolumeUse.objects.filter(has_pods | is_active, volume__in=volumes)
    rows = held.order_by("job__submit_rank").values_list("volume_id", "job_id", "job__name").distinct()
    found: dict[Any, tuple[Any, str]] = {}
    for volume, job, name in rows:
        found.setdefault(volume, (job, name))
    return found


def _awaited_snapshots(volumes: Iterable[Any]) -> dict[Any, tuple[Any, str]]:
    """Return the job (id and name) by volume whose events' snapshots of it have to be taken before another job may
    write to it: they would hold what that job wrote. Each wait has a limit, or ends with the copy of the files."""
    return _pending_snapshots(volumes) | due_jobs(volumes)


def _pending_snapshots(volumes: Iterable[Any]) -> dict[Any, tuple[Any, str]]:
    pending = Snapshot.objects.filter(volume__in=volumes, state=PENDING, job__isnull=False).exclude(mark="")
    columns = ("volume_id", "job_id", "job_name", "created_at", "reason", "project__cluster__engine")
    since = timezone.now() - TAKEN_WITHIN
    return {
        volume: (job, name)
        for volume, job, name, created_at, reason, engine in pending.order_by("number").values_list(*columns)
        if created_at >= since or not (reason or engine_kind(engine).claims_volumes)
    }
