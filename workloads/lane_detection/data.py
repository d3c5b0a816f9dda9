"""Images and masks of a prepared data directory, as tensors.

`seg_label/list/train.txt` and `val.txt` have a line for each image: its path, its mask's path, and whether
each of the four lanes exists.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from workloads.common.pictures import normalised, opened
from workloads.common.records import BadRecord, Skipped
from workloads.lane_detection.scnn import LANES, Size

LISTS = Path("seg_label") / "list"
MOST_DEGREES = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a list: an image, its mask, and which lanes exist."""

    picture: Path
    mask: Path
    exists: tuple[float, ...]


class Lanes(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """(3, h, w) images, (h, w) classes and four existence flags; rotated by up to a degree if
    `is_augmented`."""

    def __init__(self, samples: Sequence[Sample], size: Size, *, is_augmented: bool) -> None:
        self._samples, self._size, self._is_augmented = samples, size, is_augmented

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        sample, shape = self._samples[index], (self._size.width, self._size.height)
        with opened(sample.picture) as picture:
            # JPEG is decoded at the next larger size, which is several times faster.
            picture.draft("RGB", shape)
            small = picture.convert("RGB").resize(shape, Image.Resampling.BICUBIC)
        with opened(sample.mask) as mask:
            # Nearest neighbour: interpolating between class numbers would give a third class.
            classes = mask.resize(shape, Image.Resampling.NEAREST)
        if self._is_augmented:
            degrees = random.uniform(-MOST_DEGREES, MOST_DEGREES)
            small = small.rotate(degrees, Image.Resampling.BILINEAR)
            classes = classes.rotate(degrees, Image.Resampling.NEAREST)
        return (
            normalised(small),
            torch.from_numpy(np.asarray(classes, dtype=np.int64)),
            torch.tensor(sample.exists),
        )


def read_list(folder: Path, name: str, skipped: Skipped) -> list[Sample]:
    """Return the samples of the list `name`, such as "train", whose image and mask exist; counts the others in
    `skipped`. Raises FileNotFoundError without the list, TooManyBadRecords beyond the limit of `skipped`."""
    file = folder / LISTS / f"{name}.txt"
    lines = file.read_text().splitlines()
    read = (
        skipped.read(f"{file.name}:{number}", partial(_sample, folder, line))
        for number, line in enumerate(lines, 1)
    )
    return [sample for sample in read if sample is not None]


def _sample(folder: Path, line: str) -> Sample:
    parts = line.split()
    if len(parts) != 2 + LANES or any(flag not in ("0", "1") for flag in parts[2:]):
        raise BadRecord("is not two paths and four flags")
    sample = Sample(folder / parts[0], folder / parts[1], tuple(map(float, parts[2:])))
    for file in (sample.picture, sample.mask):
        if not file.is_file():
            raise BadRecord(f"{file.relative_to(folder)} is missing")
    _check_heads(sample)
    return sample


def _check_heads(sample: Sample) -> None:
    """Raise BadRecord if the sample's image or mask is not an image file; reads only their headers."""
    for file in (sample.picture, sample.mask):
        try:
            with Image.open(file):
                pass
        except (OSError, SyntaxError) as error:
            raise BadRecord(f"{file.name} is no picture ({error})") from error
