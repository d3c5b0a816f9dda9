"""Chart of an elastic job's workers over time: a line for each while it runs, a mark for each generation."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dashboards.charts.figures import Axes, Mark, Stroke, line_figure
from dashboards.charts.palette import Theme, palette_for
from dashboards.charts.series import Chart, edge

HEIGHT_PER_WORKER, LEAST_HEIGHT, MOST_HEIGHT = 16, 180, 520


@dataclass(frozen=True, slots=True)
class Span:
    """The run of one worker. `is_lost`: it ended without being asked to."""

    rank: int
    node: str
    start: datetime
    end: datetime
    is_lost: bool = False


def worker_chart(
    spans: Sequence[Span],
    generations: Sequence[tuple[datetime, int, int]],
    *,
    theme: Theme,
    start: datetime,
    end: datetime,
) -> Chart:
    """Return the figure of one attempt's workers over start..end: a line for each of `spans`, at the height of
    its rank. `generations`: (time, number of the generation, number of its workers)."""
    palette, highest = palette_for(theme), max((span.rank for span in spans), default=0)
    height = min(MOST_HEIGHT, max(LEAST_HEIGHT, HEIGHT_PER_WORKER * (highest + 4)))
    axes = Axes("Time", "Worker", (-0.6, highest + 0.6), y_step=1, x_range=(start, end), height=height)
    strokes = [
        Stroke(
            f"worker:{span.rank}",
            f"worker {span.rank} on {span.node}",
            [(span.start, float(span.rank)), (span.end, float(span.rank))],
            palette.warning if span.is_lost else palette.accent,
            width=4,
        )
        for span in spans
    ]
    marks = [Mark(at, _counted(workers)) for at, _number, workers in generations]
    figure = line_figure(strokes, axes, theme=theme, marks=marks)
    rows = tuple((span.rank, span.node, edge(span.start), edge(span.end)) for span in spans)
    return Chart(figure, _summary(spans, generations), ("Worker", "Node", "From", "To"), rows)


def _counted(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _summary(spans: Sequence[Span], generations: Sequence[tuple[datetime, int, int]]) -> str:
    if not spans:
        return "No worker has started yet."
    if not generations:
        return f"Workers that have run: {len(spans)}; the program has not joined as a member yet."
    sizes = [workers for _at, _number, workers in generations]
    lost = sum(span.is_lost for span in spans)
    words = f"{_counted(sizes[-1])} now; {min(sizes)} to {max(sizes)} in {len(sizes)} generations"
    if len(sizes) == 1:
        words = f"{_counted(sizes[0])} since the start"
    return f"{words}; {lost} lost." if lost else f"{words}."
