"""Lay out a lineage graph in columns from left to right, for a page. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from datasets.lineage import Edge, Graph, Node

# Five columns, a job that runs on a restored volume, fit beside the navigation of a window of 1,400 pixels.
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 192, 48, 40, 12, 4
# Characters of an average width that fit into a box.
NAME_MOST = 22


@dataclass(frozen=True, slots=True)
class Box:
    """A node with its top left corner. `name`: shortened to fit."""

    node: Node
    x: int
    y: int
    name: str


@dataclass(frozen=True, slots=True)
class Line:
    """An edge as an SVG path."""

    edge: Edge
    path: str


@dataclass(frozen=True, slots=True)
class Picture:
    """A graph with positions, in pixels."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[Line]


def draw(graph: Graph) -> Picture:
    """Return the layout of a graph. Edges always lead to the right."""
    columns = defaultdict[int, list[Node]](list)
    places = _columns(graph)
    for one in graph.nodes:
        columns[places[one.key]].append(one)
    tallest = max(map(len, columns.values()))
    height = 2 * MARGIN + tallest * (HEIGHT + GAP_Y) - GAP_Y
    boxes = {
        one.key: Box(one, x, y, _short(one.name))
        for column, nodes in columns.items()
        for one, x, y in _placed(column, nodes, height)
    }
    lines = [Line(edge, _path(boxes[edge.source], boxes[edge.target])) for edge in graph.edges]
    width = 2 * MARGIN + (max(columns) + 1) * (WIDTH + GAP_X) - GAP_X
    return Picture(width, height, list(boxes.values()), lines)


def _columns(graph: Graph) -> dict[str, int]:
    """Return the column of each node: to the right of all its inputs; ingredients directly left of their
    first use."""
    before, after = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for edge in graph.edges:
        before[edge.target].append(edge.source)
        after[edge.source].append(edge.target)
    found: dict[str, int] = {one.key: 0 for one in graph.nodes}
    # The graph is acyclic, since a product is younger than its run. The bound ends the loop even for wrong
    # data.
    for _ in range(len(found)):
        moved = {key: max((found[one] + 1 for one in before[key]), default=0) for key in found}
        if moved == found:
            break
        found = moved
    first_uses = {
        key: min(found[one] for one in after[key]) - 1 for key in found if not before[key] and after[key]
    }
    return found | first_uses


def _placed(column: int, nodes: Sequence[Node], height: int) -> list[tuple[Node, int, int]]:
    own = len(nodes) * (HEIGHT + GAP_Y) - GAP_Y
    top = (height - own) // 2
    x = MARGIN + column * (WIDTH + GAP_X)
    return [(one, x, top + place * (HEIGHT + GAP_Y)) for place, one in enumerate(nodes)]


def _path(source: Box, target: Box) -> str:
    x1, y1 = source.x + WIDTH, source.y + HEIGHT // 2
    x2, y2 = target.x, target.y + HEIGHT // 2
    bend = max(GAP_X // 2, (x2 - x1) // 2)
    return f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"


def _short(name: str) -> str:
    return name if len(name) <= NAME_MOST else f"{name[: NAME_MOST - 1]}…"
