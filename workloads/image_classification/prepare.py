"""Sort ImageNet's validation images into folders: `python -m workloads.image_classification.prepare`.

DATA_DIR/val has the images, TRUTH the class of each: a line or CSV row with the image's name (with or without
suffix), then the class. Images are moved; it is safe to repeat.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from workloads.common.records import BadRecord, Skipped, TooManyBadRecords
from workloads.common.settings import Settings

CLASS = re.compile(r"[A-Za-z0-9_-]+")
HEADINGS = ("ImageId", "filename", "image")


def sort_pictures(folder: Path, truth: Path, skipped: Skipped) -> int:
    """Move the images of `folder` into subfolders by the classes that the file `truth` gives. Return how many of
    its images are there now. Counts bad rows in `skipped`; raises TooManyBadRecords beyond its limit. Safe to
    repeat."""
    return sum(
        skipped.read(name, partial(_move, folder, name, kind)) is not None for name, kind in _rows(truth)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Settings(prog="prepare", description="Sort ImageNet's validation pictures into folders.")
    parser.add("data-dir", "/mnt/imagenet", Path, "where val/ is")
    parser.add("truth", "", Path, "file with the class of each picture")
    options = parser.parse_args(arguments)
    folder = options.data_dir / "val"
    for path, kind in ((folder, folder.is_dir()), (options.truth, options.truth.is_file())):
        if not kind:
            print(f"There is no {path}.", flush=True)
            return 1
    skipped = Skipped()
    try:
        count = sort_pictures(folder, options.truth, skipped)
    except TooManyBadRecords as error:
        print(error, flush=True)
        return 1
    skipped.report()
    print(f"{count} pictures of {folder} are in folders of their classes", flush=True)
    return 0


def _rows(truth: Path) -> Iterator[tuple[str, str]]:
    for line in truth.read_text(errors="replace").splitlines():
        name, *rest = re.split(r"[,\s]+", line.strip(), maxsplit=2)
        if name and name not in HEADINGS:
            yield name, rest[0] if rest else ""


def _move(folder: Path, name: str, kind: str) -> Path:
    if not CLASS.fullmatch(kind) or Path(name).name != name:
        raise BadRecord(f"{kind!r} is not the name of a class")
    file = name if Path(name).suffix else f"{name}.JPEG"
    target = folder / kind / file
    if not target.exists():
        if not (folder / file).is_file():
            raise BadRecord(f"picture {file} is missing")
        target.parent.mkdir(exist_ok=True)
        (folder / file).rename(target)
    return target


if __name__ == "__main__":
    raise SystemExit(main())
