"""Prepare a data directory for training: `python -m workloads.lane_detection.prepare`.

DATA_DIR is a directory in the TuSimple format, or an empty one that is filled from SOURCE (an archive, or a
directory) or with CLIPS synthetic clips. Writes a mask for each labelled image, and the lists of training and
validation images. Safe to repeat: existing masks are kept.
"""

from __future__ import annotations

import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.common.records import NoData, Skipped, TooManyBadRecords
from workloads.common.settings import Settings, count
from workloads.lane_detection.data import LISTS
from workloads.lane_detection.labels import Label, draw_mask, read_labels, slots_of
from workloads.lane_detection.synthetic import write_clips

# The benchmark's own split.
TRAIN = ("label_data_0313.json", "label_data_0601.json")
VALIDATION = ("label_data_0531.json",)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The number of images in each list."""

    train: int
    validation: int


def prepare(folder: Path, skipped: Skipped) -> Prepared:
    """Write a mask for each labelled image, unless it exists, and the lists of training and validation images.
    Return their lengths. Raises NoData without a labelled image, TooManyBadRecords beyond the limit of `skipped`."""
    (folder / LISTS).mkdir(parents=True, exist_ok=True)
    train = _write_list(folder, "train", TRAIN, skipped)
    validation = _write_list(folder, "val", VALIDATION, skipped)
    if not train:
        raise NoData(f"There is no labelled picture in {folder}: {' or '.join(TRAIN)} must name some.")
    return Prepared(train, validation)


def fill(folder: Path, source: str, clips: int) -> None:
    """Fill a directory that has no labels yet from `source` (an archive or a directory) or, if that is "", with
    `clips` synthetic clips. Raises NoData if neither is given."""
    folder.mkdir(parents=True, exist_ok=True)
    if any((folder / name).exists() for name in TRAIN):
        return
    if source:
        _copy(Path(source), folder)
    elif clips:
        print(f"{clips} synthetic clips go to {folder}", flush=True)
        write_clips(folder, clips)
    else:
        raise NoData(
            f"{folder} has no {TRAIN[0]}. Set SOURCE to an archive of the data, or CLIPS to a number."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Settings(prog="prepare", description="Prepare lane data for training.")
    parser.add("data-dir", "/mnt/tusimple_data/train_set", Path, "where the data is or goes")
    parser.add("source", "", str, "archive or directory to fill it from")
    parser.add("clips", "0", count, "synthetic clips where there is no source")
    options = parser.parse_args(arguments)
    skipped = Skipped()
    try:
        fill(options.data_dir, options.source, options.clips)
        prepared = prepare(options.data_dir, skipped)
    except (NoData, TooManyBadRecords) as error:
        print(error, flush=True)
        return 1
    skipped.report()
    words = f"{prepared.train} pictures to train, {prepared.validation} to validate"
    print(f"prepared {options.data_dir}: {words}", flush=True)
    return 0


def _copy(source: Path, folder: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, folder, dirs_exist_ok=True)
    elif source.is_file():
        try:
            _unpack(source, folder)
        except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile, zlib.error) as error:
            raise NoData(f"SOURCE {source} cannot be unpacked: {error}.") from error
    else:
        raise NoData(f"SOURCE {source} is neither an archive nor a directory.")


def _unpack(source: Path, folder: Path) -> None:
    """Unpack a zip or tar file. A tar member outside of `folder`, and a link or device, raises TarError; a zip
    member outside is skipped."""
    if source.suffix == ".zip":
        shutil.unpack_archive(source, folder)
        return
    # Without tarfile's filters, which Python has since 3.11.4.
    with tarfile.open(source) as archive:
        for member in archive:
            is_inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
            if not is_inside or not (member.isreg() or member.isdir()):
                raise tarfile.TarError(f"it has {member.name!r}, which is no file or directory in it")
            archive.extract(member, folder, set_attrs=False)


def _write_list(folder: Path, name: str, files: Sequence[str], skipped: Skipped) -> int:
    lines = []
    for file in files:
        if (folder / file).exists():
            lines += [_write_mask(folder, label) for label in read_labels(folder / file, skipped)]
    fresh = folder / LISTS / f".{name}.txt"
    fresh.write_text("".join(line + "\n" for line in lines))
    fresh.replace(folder / LISTS / f"{name}.txt")
    return len(lines)


def _write_mask(folder: Path, label: Label) -> str:
    """Write a label's mask unless it exists. Return the label's line for the list of images."""
    slots = slots_of(label)
    mask = Path("seg_label") / Path(label.picture).with_suffix(".png")
    if not (folder / mask).exists():
        (folder / mask).parent.mkdir(parents=True, exist_ok=True)
        fresh = (folder / mask).with_suffix(".part")
        draw_mask(slots).save(fresh, "PNG")
        fresh.replace(folder / mask)
    return f"{label.picture} {mask.as_posix()} {' '.join(str(int(slot is not None)) for slot in slots)}"


if __name__ == "__main__":
    raise SystemExit(main())
