"""Labelled images, read from class folders or a table, or generated.

Folders: `train/CLASS/picture` and `val/CLASS/picture`. Table (chest X-rays): a CSV with the columns `Image
Index` and `Finding Labels`, in which an image's labels are joined by `|`.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from workloads.common.pictures import normalised, opened
from workloads.common.records import BadRecord, NoData, Skipped

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
# Labels of the NIH collection of chest X-rays: fourteen findings, and "no finding".
FINDINGS = (
    "Atelectasis", "Cardiomegaly", "Consolidation", "Edema", "Effusion", "Emphysema", "Fibrosis", "Hernia",
    "Infiltration", "Mass", "No Finding", "Nodule", "Pleural_Thickening", "Pneumonia", "Pneumothorax",
)  # fmt: skip
# Shorter side to which validation images are resized, before their centre is cropped.
MARGIN = 256 / 224
LEAST_AREA = 0.35
SYNTHETIC_CLASSES = 4


@dataclass(frozen=True, slots=True)
class Labelled:
    """An image and its target: the number of its class, or a 0 or 1 for each label."""

    picture: Path
    target: int | tuple[float, ...]


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """(3, side, side) images and targets: a random crop, possibly mirrored, if `is_augmented`, else the
    centre."""

    def __init__(self, samples: Sequence[Labelled], side: int, *, is_augmented: bool) -> None:
        self._samples, self._side, self._is_augmented = samples, side, is_augmented

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        sample = self._samples[index]
        with opened(sample.picture) as picture:
            picture.draft("RGB", (self._side * 2, self._side * 2))
            whole = picture.convert("RGB")
        part = _random_part(whole, self._side) if self._is_augmented else _middle(whole, self._side)
        return normalised(part), torch.tensor(sample.target)


class Drawn(Dataset[tuple[Tensor, Tensor]]):
    """Generated images: noise in which one quadrant is brighter; its number is the class, or the only label."""

    def __init__(self, count: int, side: int, labels: int = 0) -> None:
        self._count, self._side, self._labels = count, side, labels

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        place, half = index % SYNTHETIC_CLASSES, self._side // 2
        picture = torch.randn(3, self._side, self._side, generator=torch.Generator().manual_seed(index))
        down, right = divmod(place, 2)
        picture[:, down * half : (down + 1) * half, right * half : (right + 1) * half] += 1.5
        if not self._labels:
            return picture, torch.tensor(place)
        return picture, torch.nn.functional.one_hot(torch.tensor(place), self._labels).float()


def read_folders(root: Path, classes: Sequence[str], skipped: Skipped) -> list[Labelled]:
    """Return the images of `root/CLASS/`, each with the index of its class in `classes`. Skips unreadable images
    and those in other folders, and counts them in `skipped`. Raises NoData if no image is left, TooManyBadRecords
    beyond the limit of `skipped`."""
    numbers = {name: number for number, name in enumerate(classes)}
    found = []
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        for file in sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES):
            name = f"{folder.name}/{file.name}"
            found.append(skipped.read(name, partial(_labelled, file, numbers, folder.name)))
    kept = [sample for sample in found if sample is not None]
    if not kept:
        raise NoData(f"{root} has no picture in any folder of a class.")
    return kept


def classes_of(root: Path) -> list[str]:
    """Return the sorted names of the directories in `root`, one for each class. Raises NoData if `root` is not a
    directory."""
    if not root.is_dir():
        raise NoData(f"There is no {root}. Pictures are in train/CLASS/ of DATA_DIR.")
    return sorted(path.name for path in root.iterdir() if path.is_dir())


def read_table(table: Path, pictures: Path, skipped: Skipped) -> list[Labelled]:
    """Return the images that the CSV file `table` lists, from the directory `pictures`, each with a 0 or 1 for
    each of FINDINGS. Counts bad rows in `skipped`. Raises NoData without the file or its columns,
    TooManyBadRecords beyond the limit of `skipped`."""
    if not table.is_file():
        raise NoData(f"There is no {table}.")
    with open(table, newline="", errors="replace") as file:
        rows = csv.DictReader(file)
        if not {"Image Index", "Finding Labels"} <= set(rows.fieldnames or ()):
            raise NoData(f"{table} has no columns `Image Index` and `Finding Labels`.")
        found = [skipped.read(f"{table.name}:{rows.line_num}", partial(_row, row, pictures)) for row in rows]
    return [sample for sample in found if sample is not None]


def _row(row: dict[str, str], pictures: Path) -> Labelled:
    labels = {label.strip() for label in (row["Finding Labels"] or "").split("|")}
    unknown = sorted(labels - set(FINDINGS))
    if unknown:
        raise BadRecord(f"label {unknown[0]!r} is none of the {len(FINDINGS)} findings")
    file = pictures / Path(row["Image Index"] or "?").name
    _check(file)
    return Labelled(file, tuple(float(label in labels) for label in FINDINGS))


def _labelled(file: Path, numbers: dict[str, int], name: str) -> Labelled:
    if name not in numbers:
        raise BadRecord(f"class {name!r} is not among those to train on")
    _check(file)
    return Labelled(file, numbers[name])


def _check(file: Path) -> None:
    """Raise BadRecord for a file that is missing or not an image; reads only its header."""
    if not file.is_file():
        raise BadRecord(f"picture {file.name} is missing")
    try:
        with Image.open(file):
            pass
    except (OSError, SyntaxError) as error:
        raise BadRecord(f"{file.name} is no picture") from error


def _random_part(picture: Image.Image, side: int) -> Image.Image:
    share = random.uniform(LEAST_AREA, 1) ** 0.5
    width, height = max(1, int(picture.width * share)), max(1, int(picture.height * share))
    left, top = random.randint(0, picture.width - width), random.randint(0, picture.height - height)
    part = picture.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else part


def _middle(picture: Image.Image, side: int) -> Image.Image:
    scale = side * MARGIN / min(picture.size)
    width, height = side / scale, side / scale
    left, top = (picture.width - width) / 2, (picture.height - height) / 2
    return picture.resize((side, side), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
