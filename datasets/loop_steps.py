"""Periodic steps of the loop for data: remove unused code and content, and maintain caches, snapshots and
volumes."""

from controlplane.loop.steps import LoopStep
from datasets.actions.artifacts import keep_artifacts
from datasets.actions.cache_upkeep import distrust_caches, keep_caches
from datasets.actions.code_aging import remove_old_code
from datasets.actions.job_data import follow_room
from datasets.actions.lake_collection import collect_all_lakes
from datasets.actions.snapshot_events import (
    has_due_snapshots,
    remove_old_snapshots,
    snapshot_on_events,
    snapshot_on_schedule,
)
from datasets.actions.volume_care import end_jobs_without_volume, measure_volumes, note_storage_classes
from datasets.actions.volume_readings import forget_readings
from datasets.claim_watching import check_claims, has_claims

STEPS = (
    LoopStep("artifacts", keep_artifacts, every_seconds=2),
    LoopStep("code-aging", remove_old_code, every_seconds=600),
    LoopStep("lake-collection", collect_all_lakes, every_seconds=3600),
    LoopStep("volume-readings", forget_readings, every_seconds=60),
    LoopStep("volume-measuring", measure_volumes, every_seconds=30),
    LoopStep("claims", check_claims, every_seconds=5, has_work=has_claims),
    LoopStep("volumes-failed", end_jobs_without_volume, every_seconds=5),
    LoopStep("storage-classes", note_storage_classes, every_seconds=30),
    LoopStep("snapshot-events", snapshot_on_events, every_seconds=2),
    LoopStep("snapshot-schedules", snapshot_on_schedule, every_seconds=15, has_work=has_due_snapshots),
    LoopStep("snapshot-aging", remove_old_snapshots, every_seconds=60),
    LoopStep("caches-follow-room", follow_room, every_seconds=2),
    LoopStep("caches", keep_caches, every_seconds=15, at_start=distrust_caches),
)
