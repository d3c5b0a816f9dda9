"""Write why queued jobs wait, and their queue positions, into their rows: only changes, and of a long queue only a
part per cycle.

One start moves every job behind it: with 100,000 queued jobs it would change 100,000 rows. So each cycle compares the
first jobs of the queue, all jobs to which GPUs are promised, and one portion of the rest. A promise is always
written, or removed, in the cycle that decides it, because the next plan depends on it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.observe import HoldStatus
from controlplane.models import Event
from controlplane.models.bulk_update import Change, change_rows
from controlplane.scheduling.mentions import public
from controlplane.scheduling.plan import Hold, Plan
from jobs import lifecycle
from jobs.models import Job

# The first jobs of the queue, which are compared in every cycle because they start next.
HEAD = 200
# How many of the jobs behind them are compared in one cycle, so that its duration does not grow with the
# queue.
PORTION = 250
# Details of a queued job's last attempt that are kept while it waits, because the next observation reads from
# them by which job it was preempted.
KEPT = ("by_job", "by_name", "by_project", "kind", "disrupted_by", "disruption")

Statuses: TypeAlias = Mapping[str, HoldStatus]


@dataclass(frozen=True, slots=True)
class HoldProgress:
    """How far the holds of the last plan were compared with the rows. `holds`, `rows`: the objects compared last;
    `first`: index of the next portion; `left`: how many holds are not compared yet; `has_news`: the last portion had
    changes, so that `rows` will change; `promised`: queued jobs whose rows have a promise."""

    holds: object = None
    rows: object = None
    first: int = HEAD
    left: int = 0
    has_news: bool = False
    promised: frozenset[str] = frozenset()


def changed_holds(
    plan: Plan, rows: Statuses, progress: HoldProgress
) -> tuple[dict[str, HoldStatus], HoldProgress]:
    """Return the statuses to write, by job id, and the progress to keep once they are written. Nothing is compared if
    `plan.holds` and `rows` are the same objects as last time and all were compared."""
    holds, left = plan.holds, progress.left
    # A change of rows that is not ours is that of another process, which has led the loop meanwhile.
    is_changed_by_others = rows is not progress.rows and not progress.has_news
    promised, is_withdrawn = _promises(plan, rows, progress.promised)
    # A job that lost its promise may be anywhere in the queue, so all holds are compared then.
    head = len(holds) if is_withdrawn else max(HEAD, len(plan.promised))
    if holds is not progress.holds or is_changed_by_others:
        left = max(0, len(holds) - head)
    elif rows is progress.rows and left <= 0:
        return {}, progress
    first = progress.first if head <= progress.first < len(holds) else head
    portion = holds[first : first + PORTION]
    news = _news_of((*holds[:head], *portion), rows)
    return news, HoldProgress(holds, rows, first + len(portion), left - len(portion), bool(news), promised)


def _promises(plan: Plan, rows: Statuses, before: frozenset[str]) -> tuple[frozenset[str], bool]:
    """Return the jobs whose rows will have a promise once the plan is written, and whether a job lost its promise
    without starting. `before`: the jobs whose rows have one now."""
    gone = before - plan.promised.keys()
    # The row of a start that is left to the next cycle keeps its promise.
    starting = gone.intersection(start.job for start in plan.starts) if gone else frozenset[str]()
    return starting.union(plan.promised), any(job in rows for job in gone - starting)


def write_holds(holds: Statuses) -> list[Event]:
    """Write the changed statuses `holds` (by job id) of jobs that are still queued. Return the one event about them,
    which the caller appends and which names at most 500 of the jobs; [] for no `holds`."""
    if not holds:
        return []
    # A job that was stopped meanwhile keeps its own reason.
    guard = {"state": lifecycle.QUEUED}
    names = ("reason", "message", "details", "queue_position")
    change_rows(
        Job,
        [
            Change(UUID(job), guard, {name: getattr(what, name) for name in names})
            for job, what in holds.items()
        ],
    )
    return [Event(kind="queue.changed", data={"jobs": list(holds)[:500]})]


def _news_of(holds: Iterable[Hold], rows: Statuses) -> dict[str, HoldStatus]:
    shared: dict[tuple[int, str], HoldStatus] = {}
    found = ((hold.job, _news(hold, rows.get(hold.job), shared)) for hold in holds)
    return {job: what for job, what in found if what is not None}


def _news(
    hold: Hold, known: HoldStatus | None, shared: dict[tuple[int, str], HoldStatus]
) -> HoldStatus | None:
    """Return the status to write for a hold, None if the row has it already (`known`; None: no status).

    Details of how the last attempt ended, such as what preempted it, are kept. `shared`: statuses by (id of details,
    reason), so that equal jobs share one object.
    """
    before = known.details if known is not None else {}
    kept = {name: before[name] for name in KEPT if name in before}
    key = (id(hold.details), hold.reason)
    if kept or hold.is_promised or key not in shared:
        details = {**kept, **hold.details, "is_promised": hold.is_promised}
        message = public(hold.reason, details)[:LONGEST_MESSAGE]
        status = HoldStatus(hold.reason, message, details, hold.queue_position)
        if not kept and not hold.is_promised:
            shared[key] = status
    else:
        status = replace(shared[key], queue_position=hold.queue_position)
    return None if status == known else status
