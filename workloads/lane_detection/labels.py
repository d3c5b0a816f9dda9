"""Read labels in the TuSimple format, and draw the masks on which a network is trained.

A label file has one JSON object per line: `raw_file` (the image, relative to the data directory), `h_samples`
(rows) and `lanes` (for each lane an x for each row, -2 where it has no point).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from PIL import Image, ImageDraw

from workloads.common.records import BadRecord, Skipped
from workloads.lane_detection.scnn import LANES

WIDTH, HEIGHT = 1280, 720
THICKNESS = 15
LEAST_POINTS = 4

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Label:
    """The lanes of one image as in the file. Each lane has as many values as `rows`."""

    picture: str
    rows: tuple[float, ...]
    lanes: tuple[tuple[float, ...], ...]


def read_labels(file: Path, skipped: Skipped) -> Iterator[Label]:
    """Yield the labels of a file. Skips invalid lines and labels whose image is missing, and counts them in
    `skipped`. Raises TooManyBadRecords beyond its limit."""
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            label = skipped.read(f"{file.name}:{number}", partial(_with_picture, line, file.parent))
            if label is not None:
                yield label


def parse_label(line: bytes | str) -> Label:
    """Return the label in a line. Raises BadRecord if the line is not JSON, lacks a field, has lanes of a wrong
    length, or names an image outside of the data directory."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"not JSON ({error})") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("raw_file"), str):
        raise BadRecord("has no raw_file")
    picture = PurePosixPath(fields["raw_file"])
    if picture.is_absolute() or ".." in picture.parts:
        raise BadRecord(f"raw_file {fields['raw_file']!r} is outside of the data directory")
    rows = _numbers(fields.get("h_samples"), "h_samples")
    lanes = fields.get("lanes")
    if not isinstance(lanes, list):
        raise BadRecord("has no lanes")
    read = tuple(_numbers(lane, f"lane {number}") for number, lane in enumerate(lanes))
    for number, lane in enumerate(read):
        if len(lane) != len(rows):
            raise BadRecord(f"lane {number} has {len(lane)} points for {len(rows)} rows")
    return Label(str(picture), rows, read)


def slots_of(label: Label) -> tuple[Points | None, ...]:
    """Return the lanes left of left, left, right, and right of right, as seen from the car; None for a
    missing one.

    Lanes are sorted by their angle. The last one that leans to the right is the left border of the car's own
    lane.
    """
    lanes = [[(x, y) for x, y in zip(lane, label.rows, strict=True) if x >= 0] for lane in label.lanes]
    ordered = sorted(((_angle(lane), lane) for lane in lanes if len(lane) > 1), key=lambda pair: pair[0])
    left = [lane for angle, lane in ordered if angle <= 90][-2:]
    right = [lane for angle, lane in ordered if angle > 90][:2]
    places = [*[None] * (2 - len(left)), *left, *right, *[None] * (2 - len(right))]
    return tuple(lane if lane is not None and len(lane) >= LEAST_POINTS else None for lane in places)


def draw_mask(slots: Sequence[Points | None], width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Return a greyscale image of `width` by `height` in which each lane is drawn in the number of its slot, from
    1; 0 is background. Raises ValueError unless there are LANES slots."""
    if len(slots) != LANES:
        raise ValueError(f"There are {LANES} slots, not {len(slots)}.")
    mask = Image.new("L", (width, height))
    pencil = ImageDraw.Draw(mask)
    for value, lane in enumerate(slots, 1):
        if lane is not None:
            pencil.line(lane, fill=value, width=THICKNESS, joint="curve")
    return mask


def _with_picture(line: bytes, folder: Path) -> Label:
    label = parse_label(line)
    if not (folder / label.picture).is_file():
        raise BadRecord(f"picture {label.picture} is missing")
    return label


def _numbers(value: Any, name: str) -> tuple[float, ...]:
    is_list = isinstance(value, list) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        for number in value
    )
    if not is_list:
        raise BadRecord(f"{name} is not a list of numbers")
    return tuple(value)


def _angle(lane: Points) -> float:
    """Return the lane's angle in degrees; below 90 if its lower end is on the left."""
    (first_x, first_y), (last_x, last_y) = lane[0], lane[-1]
    return math.degrees(math.atan2(last_y - first_y, first_x - last_x))
