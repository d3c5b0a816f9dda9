"""Format numbers and times for tables."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Any

from controlplane.notation import binary_bytes, decimal_bytes

_DAY, _HOUR, _MINUTE = 86_400, 3_600, 60


def duration(seconds: float | None) -> str:
    """Format seconds: `42s`, `7m05s`, `3h12m`, `2d04h`; "" for None."""
    if seconds is None:
        return ""
    whole = max(int(seconds), 0)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def age(moment: str | None) -> str:
    """Return how long ago a time (RFC 3339) was, as `duration`; "" for None."""
    if not moment:
        return ""
    return duration(time.time() - datetime.fromisoformat(moment).timestamp())


def ago(moment: str | None) -> str:
    """Return an age (see `age`) as text, without a second unit that is 0: `7m05s ago`, `5h ago`."""
    return f"{re.sub('(?<=[mhd])00[smh]$', '', age(moment))} ago"


def local_time(moment: str | None) -> str:
    """Return a time (RFC 3339) to the second, in UTC: `2026-11-28 12:30:00Z`; "" for None."""
    if not moment:
        return ""
    return datetime.fromisoformat(moment).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def percent(share: float | None) -> str:
    """Format a fraction as a percentage: 0.973 as `97%`; "" for None."""
    return "" if share is None else f"{share * 100:.0f}%"


def gpus(count: float | None) -> str:
    """Format a number of GPUs, to three decimals: `2`, `0.5`; "" for None."""
    return "" if count is None else f"{round(count, 3):g}"


def mebibytes(mib: float | None) -> str:
    """Format MiB: `512Mi` or `31.5Gi`; "" for None."""
    if mib is None:
        return ""
    return f"{mib:g}Mi" if mib < 1024 else f"{round(mib / 1024, 1):g}Gi"


def size(count: int) -> str:
    """Format bytes in powers of 1000: `512 B`, `4.2 MB`, `1.5 TB`."""
    return decimal_bytes(count)


def counted_files(count: int) -> str:
    """Return `1 file` or `2,000 files`."""
    return f"{count:,} file" + ("" if count == 1 else "s")


def binary_size(count: int | None) -> str:
    """Format bytes in powers of 1024: `512 B`, `4.2 MiB`, `10 GiB`; `?` for None."""
    return "?" if count is None else binary_bytes(count)


def transferred(report: dict[str, Any]) -> str:
    """Return how much of a dataset was read or copied: `40 of 1,200 files, 1.0 MB of 4.2 GB`. `report`: the progress
    object of REST."""
    files, done = f"{report['files']:,} of {report['total_files']:,} files", size(report["bytes"])
    return f"{files}, {done} of {size(report['total_bytes'])}"


def progress(report: dict[str, Any] | None, *, is_over: bool = False) -> str:
    """Return a job's reported progress for a table cell: `epoch 3, 40/100, eta 30s`. What the job did not report is
    left out; "" without a report. `is_over`: leave out the remaining time."""
    if not report:
        return ""
    parts = []
    if report.get("epoch") is not None:
        epochs = report.get("epochs")
        parts.append(f"epoch {report['epoch']}/{epochs}" if epochs else f"epoch {report['epoch']}")
    if report.get("step") is not None:
        total = report.get("total_steps")
        parts.append(f"{report['step']}/{total}" if total else f"step {report['step']}")
    if report.get("eta_seconds") is not None and not is_over:
        parts.append(f"eta {duration(report['eta_seconds'])}")
    return ", ".join(parts)


def progress_line(report: dict[str, Any]) -> str:
    """Return a progress report as a line of a log: `epoch 7/80  step 165/1920  loss 0.4022`; "" if the report has no
    known value."""
    text = "  ".join(part for part in (*_counts(report), *_measures(report)) if part)
    step = _number(report.get("checkpoint_step"))
    return text or ("" if step is None else f"checkpoint at step {step:.12g}")


def checkpoint(report: dict[str, Any] | None) -> str:
    """Return a job's newest checkpoint for a table cell: `step 1200, 40s ago`; "" if the job reported none."""
    step, at = (report or {}).get("checkpoint_step"), (report or {}).get("checkpoint_at")
    when = "" if at is None else ago(datetime.fromtimestamp(at, UTC).isoformat())
    return ", ".join(part for part in ("" if step is None else f"step {step}", when) if part)


def _counts(report: dict[str, Any]) -> list[str]:
    counts = (
        ("epoch", _number(report.get("epoch")), _number(report.get("epochs"))),
        ("step", _number(report.get("step")), _number(report.get("total_steps"))),
    )
    return [
        f"{name} {done:.12g}" + (f"/{total:.12g}" if total else "")
        for name, done, total in counts
        if done is not None
    ]


def _measures(report: dict[str, Any]) -> list[str]:
    loss, accuracy = _number(report.get("loss")), _number(report.get("accuracy"))
    seconds = _number(report.get("seconds_per_step"))
    return [
        "" if loss is None else f"loss {loss:.4g}",
        "" if accuracy is None else f"accuracy {accuracy:.3g}",
        "" if seconds is None else f"{seconds:.2g} s/step",
    ]


def _number(value: object) -> float | None:
    """Return a number of a job's report as float; None for any other value. Negative zero becomes 0."""
    return float(value) + 0.0 if isinstance(value, int | float) and not isinstance(value, bool) else None


def measure(value: Any) -> str:
    """Format a value that a program reported, a number with six significant digits: 0.9411764 -> `0.941176`."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def pairs(mapping: dict[str, Any] | None) -> str:
    """Format a mapping: `a=1, b=2`; "" for None."""
    return ", ".join(f"{key}={value}" for key, value in (mapping or {}).items())


def fields(rows: list[tuple[str, object]]) -> str:
    """Return a line for each label and value, with aligned values. Empty values are left out."""
    shown = [(label, value) for label, value in rows if value not in (None, "", [], {})]
    width = max((len(label) for label, _ in shown), default=0)
    return "\n".join(f"{label + ':':<{width + 1}}  {value}" for label, value in shown)
