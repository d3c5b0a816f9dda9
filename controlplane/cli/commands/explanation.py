"""Text output of `yard explain`: one sentence, then the numbers behind it."""

from __future__ import annotations

from typing import Any

from controlplane.cli import formats


def explanation_text(name: str, answer: dict[str, Any], warning: str = "") -> str:
    """Return the text of an explanation. `name`: the job's; `answer`: the REST object; `warning`: shown after the
    first sentence."""
    reason = answer.get("reason") or {}
    lines = [f"{name}: {reason.get('message') or reason.get('code') or 'there is no reason to wait'}"]
    lines += [warning] if warning else []
    rows: list[tuple[str, object]] = [
        ("Reason", reason.get("code")),
        ("GPUs", _numbers(answer.get("shortage") or {})),
        ("Queue position", answer.get("queue_position")),
        (
            "Takes borrowed GPUs",
            f"from {formats.local_time(ages_at)}" if (ages_at := answer.get("ages_at")) else None,
        ),
        ("Ahead", ", ".join(map(_job_ahead, answer.get("ahead") or []))),
        ("Held by", ", ".join(map(_holder, answer.get("holders") or []))),
        ("Start estimate", _noted(answer)),
    ]
    listed = formats.fields(rows)
    lines += [listed] if listed else []
    lines += [f"It would start if {_change(change)}." for change in answer.get("would_start_if") or []]
    return "\n".join(lines)


def estimate_text(estimate: dict[str, Any] | None) -> str:
    """Return a start estimate as text, "" for None."""
    if not estimate:
        return ""
    if estimate["earliest"] == estimate["latest"]:
        return "now"
    earliest, latest = (formats.local_time(estimate[edge]) for edge in ("earliest", "latest"))
    return f"{earliest} to {latest}" if latest else f"after {earliest}"


def _noted(answer: dict[str, Any]) -> str:
    """Return the start estimate of an explanation with the sentence on why it is unknown or may be sooner."""
    estimate, note = estimate_text(answer.get("start_estimate")), answer.get("start_estimate_note")
    if not note:
        return estimate
    return f"{estimate}. {note}" if estimate else f"not known. {note}"


def plan_text(name: str, plan: dict[str, Any]) -> str:
    """Return the text of a submission's preview. `name`: its first line; `plan`: the REST object."""
    nodes = sorted({pod["node"] for pod in plan["placement"]})
    stopped = [one.get("name") or f"a job of {one['project']}" for one in plan["preempts"]]
    rows: list[tuple[str, object]] = [
        ("Starts", _noted(plan)),
        ("Waits", (plan.get("reason") or {}).get("message")),
        ("On", ", ".join(nodes)),
        ("Would stop", ", ".join(stopped)),
        ("GPU-hours", plan["gpu_hours"]),
    ]
    return "\n".join([name, *(line for line in [formats.fields(rows)] if line)])


def _numbers(shortage: dict[str, Any]) -> str:
    """Return the numbers that were compared as text: `request 2, free 0, missing 2`; for a gang also its numbers of
    pods."""
    is_gang = (shortage.get("pods") or 1) > 1
    shown = {
        key: value
        for key, value in shortage.items()
        if value is not None and (key.endswith("_gpus") or is_gang)
    }
    return ", ".join(f"{key.removesuffix('_gpus').replace('_', ' ')} {value}" for key, value in shown.items())


def _job_ahead(job: dict[str, Any]) -> str:
    """Return the name and project of a job ahead in the queue; only the project if the user may not see the job."""
    return f"{job['name']} ({job['project']})" if job.get("name") else f"a job of {job.get('project')}"


def _holder(holder: dict[str, Any]) -> str:
    over = holder.get("over_quota_gpus")
    return f"{holder.get('project')} {holder.get('allocated_gpus')}" + (
        f" ({over} over quota)" if over else ""
    )


def _change(change: dict[str, Any]) -> str:
    return str(change.get("message") or formats.pairs(change))
