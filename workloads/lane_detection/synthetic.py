"""Generate images of roads with lanes, in the TuSimple format: `python -m workloads.lane_detection.synthetic
DIRECTORY`.

A seed always gives the same images, so that training and tests need no download.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from workloads.lane_detection.labels import HEIGHT, WIDTH

ROWS = tuple(range(240, 720, 10))
LABELLED_FRAME = 20
HORIZON = 230
# Label file -> its share of the clips; names and split are the benchmark's.
SPLIT = {"label_data_0313.json": 0.6, "label_data_0531.json": 0.2, "test_label.json": 0.2}

Curve = tuple[float, float, float]


def write_clips(folder: Path, count: int, seed: int = 0) -> None:
    """Write about `count` clips into `folder`, each with only its labelled frame (20), and a label file for each
    part of the split; each part has at least one clip. Equal seeds give equal images."""
    drawn = iter(range(count))
    for name, share in SPLIT.items():
        numbers = [number for _, number in zip(range(max(1, round(count * share))), drawn, strict=False)]
        lines = [json.dumps(_write_clip(folder, number, seed)) for number in numbers]
        (folder / name).write_text("".join(line + "\n" for line in lines))


def draw_road(seed: int) -> tuple[Image.Image, list[list[int]]]:
    """Return an image, equal for equal seeds, and its lanes; each lane is a list with an x for each of ROWS, -2
    where it has no point."""
    draw = np.random.default_rng(seed)
    curves = _curves(draw)
    picture = Image.new("RGB", (WIDTH, HEIGHT), tuple(int(tone) for tone in draw.integers(120, 200, 3)))
    pencil = ImageDraw.Draw(picture)
    pencil.rectangle((0, HORIZON, WIDTH, HEIGHT), fill=(int(draw.integers(60, 110)),) * 3)
    for curve in curves:
        _paint(pencil, curve, is_dashed=bool(draw.random() < 0.5))
    noise = Image.fromarray(draw.integers(0, 40, (HEIGHT // 4, WIDTH // 4), dtype=np.uint8))
    noise = noise.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST).convert("RGB")
    return ImageChops.subtract(picture, noise), [_points(curve) for curve in curves]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="synthetic", description="Pictures of lanes in the TuSimple format."
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--clips", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write_clips(options.directory, options.clips, options.seed)
    print(f"{options.clips} clips in {options.directory}", flush=True)
    return 0


def _write_clip(folder: Path, number: int, seed: int) -> dict[str, object]:
    clip = Path("clips") / "synthetic" / f"{number:05d}"
    (folder / clip).mkdir(parents=True, exist_ok=True)
    picture, lanes = draw_road(seed * 1_000_003 + number)
    picture.save(folder / clip / f"{LABELLED_FRAME}.jpg", quality=85)
    return {"lanes": lanes, "h_samples": list(ROWS), "raw_file": f"{clip.as_posix()}/{LABELLED_FRAME}.jpg"}


def _curves(draw: np.random.Generator) -> list[Curve]:
    """Return 2 to 4 lanes that meet in one point, as (x of that point, x at the lower border, bend), all in
    pixels."""
    meeting = WIDTH / 2 + draw.uniform(-120, 120)
    width, middle = draw.uniform(420, 560), WIDTH / 2 + draw.uniform(-80, 80)
    bend = draw.uniform(-60, 60)
    count = int(draw.integers(2, 5))
    first = -0.5 - (count - 2 + int(draw.integers(0, 2))) // 2
    return [(meeting, middle + (first + place) * width, bend) for place in range(count)]


def _x_at(curve: Curve, y: float) -> float:
    meeting, bottom, bend = curve
    depth = (y - HORIZON) / (HEIGHT - HORIZON)
    return meeting + (bottom - meeting) * depth + bend * math.sin(math.pi * depth)


def _points(curve: Curve) -> list[int]:
    xs = [round(_x_at(curve, row)) for row in ROWS]
    return [x if 0 <= x < WIDTH else -2 for x in xs]


def _paint(pencil: ImageDraw.ImageDraw, curve: Curve, *, is_dashed: bool) -> None:
    tone = (235, 235, 225)
    for y in range(HORIZON + 10, HEIGHT, 4):
        if is_dashed and math.log(y - HORIZON) * 6 % 2 > 1.2:
            continue
        half = 1 + (y - HORIZON) / 60
        x = _x_at(curve, y)
        pencil.rectangle((x - half, y, x + half, y + 4), fill=tone)


if __name__ == "__main__":
    raise SystemExit(main())
