"""The nearest changes that would let a held job start: up to three, cheapest first, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.scheduling import reasons
from controlplane.scheduling.order import Waiting

Details = Mapping[str, Any]
Fix = dict[str, Any]
SHOWN = 3


def would_start_if(code: str, item: Waiting, details: Details) -> list[Fix]:
    """Changes by whoever may make them. Each has a `change`, its numbers, and a `text` for people."""
    return _FIXES.get(code, _none)(item, details)[:SHOWN]


def _none(item: Waiting, details: Details) -> list[Fix]:
    return []


def _ask_less(item: Waiting, details: Details) -> list[Fix]:
    fits, largest = details.get("pods_that_fit", 0), details.get("largest_free_milli_gpus", 0)
    if item.request.pods > 1 and 0 < fits < item.request.pods:
        verb = "could run with" if item.is_elastic else "asked for"
        return [{"change": "ask_for_pods", "pods": fits, "text": f"it {verb} {fits} workers"}]
    if item.request.pods == 1 and 0 < largest < item.request.milli_gpus:
        text = f"it asked for {reasons.count_gpus(largest)}"
        return [{"change": "ask_for_gpus", "milli_gpus": largest, "text": text}]
    return []


def _raise_quota(item: Waiting, details: Details) -> list[Fix]:
    """With the job inside its quota, what others hold above theirs is owed to it."""
    account = item.account
    if account.quota is None or not any(
        holder["over_quota_milli_gpus"] > 0 and holder["project"] != account.name
        for holder in details.get("holders", ())
    ):
        return []
    quota = account.allocated + item.milli_gpus
    if quota <= account.quota:
        return []
    text = f"the quota of {account.name} were {reasons.gpus(quota)}"
    return [{"change": "raise_quota", "project": account.name, "quota_milli_gpus": quota, "text": text}]


def _over_fair_share(item: Waiting, details: Details) -> list[Fix]:
    return _ask_less(item, details) + _raise_quota(item, details)


def _over_limit(item: Waiting, details: Details) -> list[Fix]:
    limit = details["allocated_milli_gpus"] + item.milli_gpus
    text = f"the limit of {details['project']} were {reasons.gpus(limit)}"
    return [{"change": "raise_limit", "project": details["project"], "limit_milli_gpus": limit, "text": text}]


def _interactive(item: Waiting, details: Details) -> list[Fix]:
    quota = details["non_preemptible_milli_gpus"] + item.milli_gpus
    left = details["quota_milli_gpus"] - details["non_preemptible_milli_gpus"]
    fixes: list[Fix] = [{"change": "make_preemptible", "text": "it could be preempted"}]
    if left > 0 and item.request.pods == 1:
        text = f"it asked for {reasons.count_gpus(left)}"
        fixes.append({"change": "ask_for_gpus", "milli_gpus": left, "text": text})
    text = f"the quota of {details['project']} were {reasons.gpus(quota)}"
    fixes.append(
        {"change": "raise_quota", "project": details["project"], "quota_milli_gpus": quota, "text": text}
    )
    return fixes


_FIXES: dict[str, Callable[[Waiting, Details], list[Fix]]] = {
    reasons.OVER_GPU_LIMIT: _over_limit,
    reasons.INTERACTIVE_OVER_QUOTA: _interactive,
    reasons.GANG_DOES_NOT_FIT: _ask_less,
    reasons.FRAGMENTED: _ask_less,
    reasons.OVER_FAIR_SHARE: _over_fair_share,
    reasons.CLUSTER_FULL: _ask_less,
}
