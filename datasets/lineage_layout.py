"""Lay out a lineage graph in columns from left to right, for a page. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

from datasets.lineage import Edge, Graph, Node

# Five columns, a job that runs on a restored volume, fit beside the navigation of a window of 1,400 pixels.
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 192, 48, 40, 12, 4
# Height of the lane in which an edge crosses a column between its ends.
LANE = 8
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
class Picture:
    """A graph with positions, in pixels. `lines`: each edge with its SVG path."""

    width: int
    height: int
    boxes: Sequence[Box]
    lines: Sequence[tuple[Edge, str]]


# A node, or the lane of its edges through a column to the right of it: the node's key, and the column.
_Item = tuple[str, int]


def draw(graph: Graph) -> Picture:
    """Return the layout of a graph. Edges always lead to the right, and beside boxes, not behind them."""
    places = _columns(graph)
    columns = _items(graph, places)
    height = 2 * MARGIN + max(_height(items, places) for items in columns)
    middles: dict[_Item, int] = {}
    for items in columns:
        middles |= _placed(_ordered(items, graph, middles), places, height)
    nodes = [(one, places[one.key], middles[one.key, places[one.key]]) for one in graph.nodes]
    boxes = [Box(one, _left(column), y - HEIGHT // 2, _short(one.name)) for one, column, y in nodes]
    lines = [(edge, _path(edge, places, middles)) for edge in graph.edges]
    width = 2 * MARGIN + len(columns) * (WIDTH + GAP_X) - GAP_X
    return Picture(width, height, boxes, lines)


def _columns(graph: Graph) -> dict[str, int]:
    """Return the column of each node by key: to the right of all its inputs; a node without inputs directly left
    of its first use."""
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


def _items(graph: Graph, places: Mapping[str, int]) -> list[list[_Item]]:
    """Return the items of each column: (node's key, column) in its own column and, as a lane for its edges, in each
    column that they cross. `places`: the column of each node. A node's edges share one lane."""
    ends = dict(places)
    for edge in graph.edges:
        ends[edge.source] = max(ends[edge.source], places[edge.target] - 1)
    columns: list[list[_Item]] = [[] for _ in range(max(ends.values()) + 1)]
    for one in graph.nodes:
        for column in range(places[one.key], ends[one.key] + 1):
            columns[column].append((one.key, column))
    return columns


def _ordered(items: Sequence[_Item], graph: Graph, middles: Mapping[_Item, int]) -> list[_Item]:
    """Return a column's items sorted by the mean height of their inputs in the previous column, so that few lines
    cross; items without inputs there come last. `middles`: the heights in pixels of items placed so far."""
    sources = defaultdict[_Item, list[int]](list)
    for key, column in items:
        inputs = [key] if (key, column - 1) in middles else _inputs(graph, key)
        sources[key, column] += [middles[one, column - 1] for one in inputs if (one, column - 1) in middles]
    return sorted(items, key=lambda one: sum(sources[one]) / len(sources[one]) if sources[one] else inf)


def _inputs(graph: Graph, key: str) -> list[str]:
    return [edge.source for edge in graph.edges if edge.target == key]


def _placed(items: Sequence[_Item], places: Mapping[str, int], height: int) -> dict[_Item, int]:
    """Return the vertical middle of each item in pixels, with the column centred in `height` (pixels). `places`: the
    column of each node, to distinguish nodes from lanes."""
    found, top = {}, (height - _height(items, places)) // 2
    for one in items:
        own = _own_height(one, places)
        found[one] = top + own // 2
        top += own + GAP_Y
    return found


def _height(items: Sequence[_Item], places: Mapping[str, int]) -> int:
    return sum(_own_height(one, places) + GAP_Y for one in items) - GAP_Y


def _own_height(item: _Item, places: Mapping[str, int]) -> int:
    key, column = item
    return HEIGHT if places[key] == column else LANE


def _left(column: int) -> int:
    return MARGIN + column * (WIDTH + GAP_X)


def _path(edge: Edge, places: Mapping[str, int], middles: Mapping[_Item, int]) -> str:
    """Return the path of an edge: curves between columns, and straight lines along the lanes."""
    first, last = places[edge.source], places[edge.target]
    y = middles[edge.source, first]
    path = f"M{_left(first) + WIDTH} {y}"
    for column in range(first + 1, last):
        path += _curve(column, y, middles[edge.source, column]) + f" H{_left(column) + WIDTH}"
        y = middles[edge.source, column]
    return path + _curve(last, y, middles[edge.target, last])


def _curve(column: int, y1: int, y2: int) -> str:
    """Return the SVG curve from height y1 to y2 in the gap in front of a column."""
    x = _left(column)
    return f" C{x - GAP_X // 2} {y1} {x - GAP_X // 2} {y2} {x} {y2}"


def _short(name: str) -> str:
    return name if len(name) <= NAME_MOST else f"{name[: NAME_MOST - 1]}…"
