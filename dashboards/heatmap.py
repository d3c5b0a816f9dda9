"""Draw hundreds of nodes as one SVG picture that fits its panel: one square per device, or per node if there
are thousands of devices. Pure: returns the `d` attributes of SVG paths.

All squares of the same project and width form one path of vertical strokes, so that 10,000 devices need only
some tens of elements. x is in units that the page stretches to its panel; y is in pixels.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

# Width of a square, and the gap to the next in the same block, in x units.
SQUARE, GAP = 8, 2
# Additional distance between two nodes, in x units.
BLOCK_GAP = 6
# Devices of a node per line, so that nodes of up to eight GPUs are one; a node with more has several lines.
PER_LINE = 8
# Target height of the drawing in pixels, and limits on the height of a square.
HEIGHT = 340
LEAST_HEIGHT, MOST_HEIGHT = 7, 34


@dataclass(frozen=True, slots=True)
class Part:
    """A project's part of a square: width and utilisation, both 0 to 1."""

    project: str
    width: float
    use: float


@dataclass(frozen=True, slots=True)
class Square:
    """One square of the drawing: a device, or a node with all of its devices. `is_idle`: allocated and not used;
    `is_off`: it cannot be used now."""

    parts: tuple[Part, ...]
    is_idle: bool = False
    # Not allocatable: the device is used by others, or its node is not ready.
    is_off: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """The squares of a node, at one place of the grid."""

    name: str
    squares: tuple[Square, ...]


@dataclass(slots=True)
class Layer:
    """The paths of one project: (stroke width, `d`) for allocated shares and for their utilisation."""

    project: str
    held: list[tuple[float, str]] = field(default_factory=list)
    used: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The drawing. `columns`, `pitch_x` and `pitch_y`: the grid of blocks, in the order of `names`, which are
    separated by blanks. `free`, `idle` and `off`: the `d` of the paths over such squares. `square`: the width of
    a square."""

    width: int
    height: int
    columns: int
    pitch_x: int
    pitch_y: int
    square: int
    free: str
    layers: tuple[Layer, ...]
    idle: str
    off: str
    names: str


def draw(blocks: Sequence[Block]) -> HeatMap:
    """Return the drawing of these blocks, in order, on a grid with cells for the largest block."""
    largest = max((len(block.squares) for block in blocks), default=1)
    across, lines = min(largest, PER_LINE), math.ceil(largest / PER_LINE)
    pitch_x = across * (SQUARE + GAP) + (BLOCK_GAP if across > 1 else 0)
    columns = _columns(len(blocks), across, lines)
    rows = max(1, math.ceil(len(blocks) / columns))
    line = min(MOST_HEIGHT, max(LEAST_HEIGHT, HEIGHT // (rows * lines)))
    pitch_y = lines * line + (2 if lines > 1 else 0)
    pen = _Pen(line - 2)
    for place, block in enumerate(blocks):
        left, top = place % columns * pitch_x, place // columns * pitch_y
        for index, square in enumerate(block.squares):
            pen.add(square, left + index % PER_LINE * (SQUARE + GAP), top + index // PER_LINE * line)
    return pen.drawing(columns, pitch_x, pitch_y, rows, " ".join(block.name for block in blocks))


@dataclass(slots=True)
class _Pen:
    """Collects the strokes of the heat map by their style. `height`: the height of a square in pixels."""

    height: int
    free: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    off: list[str] = field(default_factory=list)
    held: defaultdict[tuple[str, float], list[str]] = field(default_factory=lambda: defaultdict(list))
    used: defaultdict[tuple[str, float], list[str]] = field(default_factory=lambda: defaultdict(list))

    def add(self, square: Square, x: int, y: int) -> None:
        middle = f"M{x + SQUARE // 2} {y}v{self.height}"
        if sum(part.width for part in square.parts) < 1:
            self.free.append(middle)
        left = float(x)
        for part in square.parts:
            width = round(part.width * SQUARE, 2)
            if width > 0:
                self._part(part, width, f"M{left + width / 2:.4g} ", y)
            left += width
        if square.is_idle:
            self.idle.append(f"M{x} {y}h{SQUARE}v{self.height}h-{SQUARE}z")
        if square.is_off:
            self.off.append(middle)

    def _part(self, part: Part, width: float, start: str, y: int) -> None:
        self.held[part.project, width].append(f"{start}{y}v{self.height}")
        used = round(part.use * self.height)
        if used:
            self.used[part.project, width].append(f"{start}{y + self.height}v-{used}")

    def drawing(self, columns: int, pitch_x: int, pitch_y: int, rows: int, names: str) -> HeatMap:
        layers: dict[str, Layer] = {}
        for project, width in sorted(self.held):
            layer = layers.setdefault(project, Layer(project))
            layer.held.append((width, "".join(self.held[project, width])))
            if (project, width) in self.used:
                layer.used.append((width, "".join(self.used[project, width])))
        return HeatMap(
            width=columns * pitch_x - (pitch_x - (pitch_x // (SQUARE + GAP)) * (SQUARE + GAP)) - GAP,
            height=rows * pitch_y - 2,
            columns=columns,
            pitch_x=pitch_x,
            pitch_y=pitch_y,
            square=SQUARE,
            free="".join(self.free),
            layers=tuple(layers.values()),
            idle="".join(self.idle),
            off="".join(self.off),
            names=names,
        )


def _columns(blocks: int, across: int, lines: int) -> int:
    """Return the number of `blocks` per row, for blocks of `across` by `lines` squares."""
    squares = blocks * across * lines
    # Squares are drawn taller than wide, so there are more across than down.
    return max(1, min(blocks, round(math.sqrt(squares * 3.2) / across)))
