"""Train SCNN on images of lanes, on one rank or many: `python -m workloads.lane_detection.train`.

Settings are arguments or variables. Without DATA_DIR, and without a prepared directory at its default path,
synthetic clips are generated beside the checkpoints, so that the program runs anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, distributed, nn
from torch.utils.data import Dataset

from workloads.common import checkpoint
from workloads.common.distributed import means_over_ranks
from workloads.common.optimizers import PlainSGD
from workloads.common.pictures import normalised, opened
from workloads.common.rank_info import RankInfo
from workloads.common.readable import Readable
from workloads.common.records import Skipped
from workloads.common.schedule import polynomial
from workloads.common.settings import Settings, count, flag, positive
from workloads.common.training import Batch, Plan, train
from workloads.lane_detection.data import LISTS, Lanes, read_list
from workloads.lane_detection.decode import lanes_of
from workloads.lane_detection.labels import Label, read_labels
from workloads.lane_detection.metric import mean_of, score, strict_score
from workloads.lane_detection.prepare import VALIDATION, fill, prepare
from workloads.lane_detection.scnn import FULL, SCNN, SIZES, SMALL, Size, loss_of

USUAL_PLACE = Path("/mnt/tusimple_data/train_set")
SYNTHETIC_CLIPS = 180
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4


@dataclass(frozen=True, slots=True)
class Options:
    """The user's settings. `learning_rate`: the learning rate for one rank; it is multiplied by the number of ranks.
    `is_validating`: the validation list is read and scored after each epoch."""

    data_dir: Path
    size: Size
    learning_rate: float
    is_validating: bool
    val_batch_size: int


class LaneDetection:
    """The program of lane detection, for workloads.common.training.train."""

    def __init__(self, options: Options, rank_info: RankInfo) -> None:
        skipped = Skipped()
        _prepared(options.data_dir, rank_info, skipped)
        self._options, self.model = options, f"scnn-{options.size.name}"
        # A fixed seed: the same initial weights on all ranks and in every run.
        torch.manual_seed(0)
        self.net: nn.Module = SCNN(options.size)
        self.optimizer: torch.optim.Optimizer = PlainSGD(
            self.net.parameters(),
            lr=options.learning_rate,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            nesterov=True,
        )
        samples = read_list(options.data_dir, "train", skipped)
        self.data: Dataset[Any] = Readable(Lanes(samples, options.size, is_augmented=True), skipped)
        self._skipped, self._broken = skipped, set[str]()
        self._labels = list(_validation(options.data_dir, skipped)) if options.is_validating else []
        if rank_info.is_first:
            skipped.report()

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return loss and accuracy: the share of the lanes' pixels that are assigned to the right lane."""
        pictures, labels, exists = batch
        fine, lanes = net(pictures)
        is_lane = labels > 0
        is_right = (fine.detach().argmax(dim=1) == labels) & is_lane
        # A batch may contain no lane.
        return loss_of(fine, lanes, labels, exists), is_right.sum() / is_lane.sum().clamp(min=1)

    def learning_rate(self, step: int, total_steps: int, ranks: int) -> float:
        return self._options.learning_rate * ranks * polynomial(step, total_steps)

    def validate(self, rank_info: RankInfo, device: torch.device) -> float | None:
        if not self._labels:
            return None
        mine = self._labels[rank_info.rank :: rank_info.world_size]
        sums, scored = [0.0] * 4, 0
        for start in range(0, len(mine), self._options.val_batch_size):
            labels, read = self._read(mine[start : start + self._options.val_batch_size])
            if labels:
                parts = self._scores(labels, read.to(device))
                sums = [total + part for total, part in zip(sums, parts, strict=True)]
                scored += len(labels)
        (accuracy, missed, invented, strict), pictures = means_over_ranks(sums, scored, device)
        if rank_info.is_first:
            print(
                f"validated on {pictures} pictures: accuracy {accuracy:.4f} (strict {strict:.4f}),"
                f" false positives {invented:.4f}, false negatives {missed:.4f}",
                flush=True,
            )
        return accuracy

    def _read(self, labels: Sequence[Label]) -> tuple[list[Label], Tensor]:
        """Return the labels whose images can be read, and a tensor of these images, empty if there are none. A
        broken image is counted once, not once per epoch."""
        known = [label for label in labels if label.picture not in self._broken]
        read = [(one, self._skipped.read(one.picture, partial(self._picture, one))) for one in known]
        self._broken |= {one.picture for one, picture in read if picture is None}
        pictures = [picture for _, picture in read if picture is not None]
        kept = [one for one, picture in read if picture is not None]
        return kept, torch.stack(pictures) if pictures else torch.empty(0)

    def _scores(self, labels: Sequence[Label], pictures: Tensor) -> list[float]:
        """Return sums over these images: accuracy, false negatives, false positives, strict accuracy."""
        fine, lanes = self.net(pictures)
        found = [
            lanes_of(each, exists, label.rows)
            for each, exists, label in zip(fine, lanes, labels, strict=True)
        ]
        pairs = list(zip(found, labels, strict=True))
        official = mean_of([score(guess, label.lanes, label.rows) for guess, label in pairs])
        strict = mean_of([strict_score(guess, label.lanes, label.rows) for guess, label in pairs])
        rates = (official.accuracy, official.false_negatives, official.false_positives, strict.accuracy)
        # Weighted by the number of images, since the last batch is smaller.
        return [rate * len(labels) for rate in rates]

    def _picture(self, label: Label) -> Tensor:
        size = self._options.size
        with opened(self._options.data_dir / label.picture) as picture:
            return normalised(
                picture.convert("RGB").resize((size.width, size.height), Image.Resampling.BICUBIC)
            )


def main(arguments: Sequence[str] | None = None) -> int:
    options, plan = read_settings(arguments)
    return train(lambda rank_info: LaneDetection(options, rank_info), plan)


def read_settings(arguments: Sequence[str] | None) -> tuple[Options, Plan]:
    """Return the options of the program and the plan of its training; arguments take precedence over environment
    variables. Ends the program with a message for an invalid value."""
    parser = Settings(prog="workloads.lane_detection.train", description="Train SCNN on pictures of lanes.")
    parser.add("data-dir", "", str, f"prepared data, else {USUAL_PLACE}, else synthetic clips")
    parser.add("model", "", str, "full, or small; by default full on a GPU")
    parser.add("epochs", "10", positive)
    parser.add("batch-size", "24", positive, "of one rank")
    parser.add("learning-rate", "0.15", float, "of one rank")
    parser.add("use-workers", "false", flag, "read data in processes of their own")
    parser.add("num-workers", "2", count, "how many, with use-workers")
    parser.add("use-val", "false", flag, "validate after each epoch")
    parser.add("val-batch-size", "48", positive)
    parser.add("checkpoint-steps", "0", count, "between checkpoints, 0: at the end of epochs")
    parser.add("enable-snapshot", "true", flag, "read for compatibility: the control plane takes snapshots")
    parser.add("pvc-name", "", str, "read for compatibility: the volume to take them of")
    options = parser.parse_args(arguments)
    if options.enable_snapshot and options.pvc_name:
        print(
            f"snapshots of volume {options.pvc_name} are taken by the control plane, not by this program",
            flush=True,
        )
    if options.model not in ("", *SIZES):
        parser.error(f"MODEL {options.model!r} is none of {', '.join(SIZES)}")
    size = SIZES[options.model] if options.model else FULL if torch.cuda.is_available() else SMALL
    folder = _data_dir(options.data_dir)
    read = Options(folder, size, options.learning_rate, options.use_val, options.val_batch_size)
    loaders = options.num_workers if options.use_workers else 0
    plan = Plan(
        options.epochs, options.batch_size, checkpoint.shared_dir(), loaders, options.checkpoint_steps
    )
    return read, plan


def _data_dir(named: str) -> Path:
    if named:
        return Path(named)
    return USUAL_PLACE if USUAL_PLACE.is_dir() else checkpoint.shared_dir().parent / "synthetic-lanes"


def _validation(folder: Path, skipped: Skipped) -> Iterator[Label]:
    for name in VALIDATION:
        if (folder / name).exists():
            yield from read_labels(folder / name, skipped)


def _prepared(folder: Path, rank_info: RankInfo, skipped: Skipped) -> None:
    """Prepare the data unless they are: on rank 0, then on the first rank of each node that does not share its
    disk. All ranks must call it."""
    for is_turn in (rank_info.is_first, rank_info.local_rank == 0):
        if is_turn and not (folder / LISTS / "train.txt").exists():
            fill(folder, "", SYNTHETIC_CLIPS if "DATA_DIR" not in os.environ else 0)
            prepare(folder, skipped)
        # Wait: the next rank, and the training, need the files.
        distributed.barrier()


if __name__ == "__main__":
    raise SystemExit(main())
