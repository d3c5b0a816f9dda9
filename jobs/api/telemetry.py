"""REST views of the overview's numbers and of chart series."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from controlplane.access import Actor, visible_project_names
from controlplane.api import query
from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.problems import bad_request
from controlplane.live.snapshot_read import one_moment
from controlplane.models import Event
from controlplane.telemetry.queries import METRICS, SUBJECTS, series
from jobs.access import visible_jobs
from jobs.overview_state import overview_document, read_overview

DEFAULT_RANGE = timedelta(hours=1)
LONGEST_RANGE = timedelta(days=3660)
MOST_SUBJECTS = 200
SERIES = {
    "metric": query.choices(METRICS, "What was measured."),
    "by": query.choices(SUBJECTS, "One line for each of these."),
    "subject": query.texts("Only these projects, nodes, devices or jobs."),
    "from": query.moment("Where the range begins; an hour before its end when left out."),
    "to": query.moment("Where the range ends; now when left out."),
    "step": query.whole(1, 366 * 86400, "Seconds between points; raised where it would give more than 400."),
}


class Overview(ApiView):
    """Totals and lists of the overview page, as of one event number."""

    @operation(
        "The cluster in numbers: nodes, GPUs, projects, running and queued jobs", answer=ref("Overview")
    )
    def get(self, call: Call) -> Answer:
        with one_moment():
            seq = Event.objects.last_seq()
            whole = read_overview(seq)
            state = whole.seen_by(visible_project_names(call.actor))
        return Answer(overview_document(state, seq))


class SeriesView(ApiView):
    """Time series of one metric for charts, one per subject."""

    @operation("Series of one metric over time", answer=ref("SeriesList"), query=SERIES)
    def get(self, call: Call) -> Answer:
        metric, by = _single(call, "metric"), _single(call, "by", "cluster")
        start, end = _range(call)
        subjects = _visible_subjects(call.actor, by, call.query["subject"])
        lines = series(metric, by, subjects, start, end, call.query["step"])
        shown = {"metric": metric, "by": by, "from": start, "to": end}
        return Answer(shown | {"series": [line.as_json() for line in lines]})


def _single(call: Call, name: str, default: str | None = None) -> str:
    values = call.query[name] or ([default] if default else [])
    if len(values) != 1:
        raise bad_request("?" + name, f"bad_{name}", f"Give one {name}.")
    return str(values[0])


def _range(call: Call) -> tuple[datetime, datetime]:
    end = call.query["to"] or timezone.now()
    try:
        start = call.query["from"] or end - DEFAULT_RANGE
    except OverflowError as error:
        raise bad_request("?to", "bad_to", "No measurement is that old; choose a later time.") from error
    if not timedelta(0) < end - start <= LONGEST_RANGE:
        raise bad_request(
            "?from", "bad_from", "The range must begin before it ends, and span ten years at most."
        )
    return start, end


def _visible_subjects(actor: Actor, by: str, wanted: Sequence[str] | None) -> Sequence[str] | None:
    """Return those of the subjects `wanted` (None: all), of the kind `by`, whose series the actor may read; None means
    all. Projects, nodes and clusters are visible to all users; jobs only to members of their project. For jobs, raises
    Problem (400) if `wanted` is None, names more than MOST_SUBJECTS or is malformed."""
    if by != "job":
        return wanted
    if wanted is None or len(wanted) > MOST_SUBJECTS:
        raise bad_request("?subject", "subject_required", f"Name 1 to {MOST_SUBJECTS} jobs by id.")
    known = visible_jobs(actor).filter(pk__in=_uuids(wanted))
    return [str(pk) for pk in known.values_list("pk", flat=True)]


def _uuids(texts: Sequence[str]) -> Any:
    try:
        return query.ids("").read(",".join(texts))
    except query.Unreadable as error:
        raise bad_request("?subject", "bad_subject", str(error)) from error
