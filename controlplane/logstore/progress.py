"""Progress lines: what a job prints about itself, one JSON object per line with `"trainyard": 1`.

Every field is optional. The lines come from users' programs, so every field is validated: one of the wrong type or
out of range counts as absent. Any other line is not progress.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from controlplane.logstore.reader import LogLine, tail

# A job may print other lines after its last progress line.
LOOK_BACK_LINES = 200
# The end of the year 9999 in Unix seconds, which is Python's last date.
LAST_MOMENT = 253_402_300_799


@dataclass(frozen=True, slots=True)
class Progress:
    """One progress line; None: a field that it lacks. `gpu_utilization`: 0 to 1 of the job's share;
    `allreduce_share`: the fraction (0 to 1) of a step's time spent exchanging gradients; `checkpoint_at`: Unix
    seconds of the last checkpoint, from which the scheduler computes the cost of a preemption; `checkpoint_step`: the
    completed steps in it."""

    time_ms: int
    epoch: int | None = None
    epochs: int | None = None
    step: int | None = None
    total_steps: int | None = None
    eta_seconds: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    samples_per_second: float | None = None
    allreduce_share: float | None = None
    seconds_per_step: float | None = None
    gpu_utilization: float | None = None
    gpu_memory_mib: int | None = None
    checkpoint_at: int | None = None
    checkpoint_step: int | None = None

    @property
    def is_checkpoint_only(self) -> bool:
        """Return whether the line reports a checkpoint and nothing else of what pages show; it then adds to the
        progress reported before."""
        return bool(shown := self.as_json()) and shown.keys() <= _CHECKPOINT

    def as_json(self) -> dict[str, int | float]:
        """Return the fields as in the REST API, without absent ones, the time and measurements such as utilisation."""
        return {name: value for name in _SHOWN if (value := getattr(self, name)) is not None}


_SHOWN = (
    "epoch",
    "epochs",
    "step",
    "total_steps",
    "eta_seconds",
    "loss",
    "accuracy",
    "seconds_per_step",
    "checkpoint_at",
    "checkpoint_step",
)
_CHECKPOINT = frozenset({"checkpoint_at", "checkpoint_step"})


def latest_progress(log_path: str | Path) -> Progress | None:
    """Return the last progress line among the last LOOK_BACK_LINES lines of a pod's log; None if there is none."""
    return find_progress(tail(log_path, LOOK_BACK_LINES).lines)


def find_progress(lines: Iterable[LogLine]) -> Progress | None:
    """Return the last progress line among these; None if there is none. A later line that reports only a checkpoint
    is merged into it."""
    checkpoint: Progress | None = None
    for line in reversed(tuple(lines)):
        progress = parse_progress(line.text, line.time_ms)
        if progress is None:
            continue
        if not progress.is_checkpoint_only:
            return _with_checkpoint(progress, checkpoint)
        checkpoint = checkpoint or progress
    return checkpoint


def parse_progress(text: str, time_ms: int) -> Progress | None:
    """Return the progress in one line of output, None if it is no progress line. `time_ms`: when it was written, Unix
    milliseconds."""
    if not text.startswith("{") or '"trainyard"' not in text:
        return None
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or _count(fields, "trainyard") != 1:
        return None
    return Progress(
        time_ms,
        epoch=_count(fields, "epoch"),
        epochs=_count(fields, "epochs"),
        step=_count(fields, "step"),
        total_steps=_count(fields, "total_steps"),
        eta_seconds=_number(fields, "eta_seconds", 0),
        loss=_number(fields, "loss"),
        accuracy=_number(fields, "accuracy"),
        samples_per_second=_number(fields, "samples_per_second"),
        allreduce_share=_number(fields, "allreduce_share", 0, 1),
        seconds_per_step=_number(fields, "seconds_per_step", 0),
        gpu_utilization=_number(fields, "gpu_utilization", 0, 1),
        gpu_memory_mib=_count(fields, "gpu_memory_mib"),
        checkpoint_at=_count(fields, "checkpoint_at", LAST_MOMENT),
        checkpoint_step=_count(fields, "checkpoint_step"),
    )


def progress_after(before: Mapping[str, Any], said: Progress) -> dict[str, Any]:
    """Return a job's progress after a new progress line `said`, in the REST API's form, as is `before`. A line that
    reports only a checkpoint keeps the other values."""
    if not said.is_checkpoint_only:
        return dict(said.as_json())
    after = {**before, **said.as_json()}
    step = _step_with(before.get("step"), said)
    return after if step is None else {**after, "step": step}


def _with_checkpoint(progress: Progress, later: Progress | None) -> Progress:
    if later is None:
        return progress
    return replace(
        progress,
        step=_step_with(progress.step, later),
        checkpoint_at=later.checkpoint_at,
        checkpoint_step=later.checkpoint_step,
    )


def _step_with(step: int | None, later: Progress) -> int | None:
    """Return the completed steps after `later`, a line that reports only a checkpoint; None if `step`, the last
    reported one, is None. Programs report at most once per second, so `step` may be older than the checkpoint's."""
    return step if step is None else max(step, later.checkpoint_step or 0)


def _number(
    fields: Mapping[str, Any], name: str, least: float = -math.inf, most: float = math.inf
) -> float | None:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e300 and least <= value <= most else None


def _count(fields: Mapping[str, Any], name: str, most: int = 2**53 - 1) -> int | None:
    value = fields.get(name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most
    return value if is_count else None
