"""Train ResNet-50 or EfficientNet on images, on one rank or many: `python -m
workloads.image_classification.train`.

Images have one class each, from folders, or with LABELS (a CSV) any of 15 findings on chest X-rays. Without
DATA_DIR the images are generated, so that the program runs anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset

from workloads.common import checkpoint
from workloads.common.distributed import means_over_ranks
from workloads.common.optimizers import PlainSGD
from workloads.common.rank_info import RankInfo
from workloads.common.readable import Readable
from workloads.common.records import Skipped
from workloads.common.schedule import cosine
from workloads.common.settings import Settings, count, positive
from workloads.common.training import Batch, Plan, train
from workloads.image_classification.data import (
    FINDINGS,
    SYNTHETIC_CLASSES,
    Drawn,
    Pictures,
    classes_of,
    read_folders,
    read_table,
)
from workloads.image_classification.efficientnet import VARIANTS, EfficientNet
from workloads.image_classification.resnet import ResNet50

RESNET, TINY = "resnet50", "tiny"
EFFICIENT_NETS = {f"efficientnet-{variant}": variant for variant in VARIANTS}
MODELS = (RESNET, *EFFICIENT_NETS, TINY)
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
DRAWN, DRAWN_PICTURES, DRAWN_VALIDATION = "drawn", 256, 64
# A table has no validation split: every fifth image is used for it.
VALIDATED_SHARE = 5


@dataclass(frozen=True, slots=True)
class Options:
    """The user's settings. `data_dir`: None for generated images. `labels`: a table of several labels per image, None
    for one class each. `side`: of the square images, in pixels."""

    model: str
    data_dir: Path | None
    labels: Path | None
    side: int
    learning_rate: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class Data:
    """Training and validation data, None without any for validation. `outputs`: number of classes or labels."""

    train: Dataset[Any]
    validation: Dataset[Any] | None
    outputs: int


class Classification:
    """The program of image classification, for workloads.common.training.train."""

    def __init__(self, options: Options, rank_info: RankInfo) -> None:
        skipped = Skipped()
        data = read_data(options, skipped)
        if rank_info.is_first:
            skipped.report()
        self._options, self._is_multi = options, options.labels is not None
        self._outputs = data.outputs
        self._validation = None if data.validation is None else Readable(data.validation, skipped)
        self.model = f"{options.model}-{data.outputs}{'-labels' if self._is_multi else ''}"
        torch.manual_seed(0)
        self.net: nn.Module = make_net(options.model, data.outputs)
        self.optimizer: torch.optim.Optimizer = PlainSGD(
            self.net.parameters(), lr=options.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )
        self.data: Dataset[Any] = Readable(data.train, skipped)

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        pictures, targets = batch
        logits = net(pictures).float()
        if self._is_multi:
            # An image may have several findings, so each is a binary classification.
            loss = functional.binary_cross_entropy_with_logits(logits, targets)
        else:
            loss = functional.cross_entropy(logits, targets, label_smoothing=0.1)
        return loss, self._right(logits.detach(), targets).mean()

    def learning_rate(self, step: int, total_steps: int, ranks: int) -> float:
        return self._options.learning_rate * ranks * cosine(step, total_steps)

    def validate(self, rank_info: RankInfo, device: torch.device) -> float | None:
        if self._validation is None:
            return None
        numbers = range(rank_info.rank, len(self._validation), rank_info.world_size)
        loader = DataLoader(Subset(self._validation, numbers), batch_size=self._options.batch_size)
        right = 0.0
        for pictures, targets in loader:
            right += float(self._right(self.net(pictures.to(device)), targets.to(device)).sum())
        (accuracy,), _ = means_over_ranks([right], len(numbers), device)
        if rank_info.is_first:
            print(f"validated: accuracy {accuracy:.4f}", flush=True)
        return accuracy

    def _right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return for each image 1 if its class is right by `logits`, else 0; with several labels, the share of
        them that are right."""
        if self._is_multi:
            return ((logits > 0) == (targets > 0.5)).float().mean(dim=1)
        return (logits.argmax(dim=1) == targets).float()


def make_net(model: str, outputs: int) -> nn.Module:
    """Return the network `model` (one of MODELS) with this number of `outputs`; a small one for a name that is
    neither RESNET nor an EfficientNet."""
    if model == RESNET:
        return ResNet50(outputs)
    if model in EFFICIENT_NETS:
        return EfficientNet(EFFICIENT_NETS[model], outputs)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, outputs),
    )


def read_data(options: Options, skipped: Skipped) -> Data:
    """Return training and validation data: from `data_dir`, or generated without it; with `labels` every
    VALIDATED_SHARE-th row is for validation. Raises NoData if there is nothing to train on, TooManyBadRecords if
    too many images cannot be read."""
    if options.data_dir is None:
        labels = len(FINDINGS) if options.labels else 0
        train, validation = (Drawn(many, options.side, labels) for many in (DRAWN_PICTURES, DRAWN_VALIDATION))
        return Data(train, validation, labels or SYNTHETIC_CLASSES)
    if options.labels:
        rows = read_table(options.labels, options.data_dir, skipped)
        parts = [row for at, row in enumerate(rows) if at % VALIDATED_SHARE], rows[::VALIDATED_SHARE]
        return Data(*_pictures(parts[0], parts[1], options.side), len(FINDINGS))
    classes = classes_of(options.data_dir / "train")
    known = read_folders(options.data_dir / "train", classes, skipped)
    val = options.data_dir / "val"
    held = read_folders(val, classes, skipped) if val.is_dir() else []
    return Data(*_pictures(known, held, options.side), len(classes))


def main(arguments: Sequence[str] | None = None) -> int:
    options, plan = read_settings(arguments)
    return train(lambda rank_info: Classification(options, rank_info), plan)


def read_settings(arguments: Sequence[str] | None) -> tuple[Options, Plan]:
    """Return the options of the program and the plan of its training; arguments take precedence over environment
    variables. Ends the program with a message for an invalid value."""
    parser = Settings(
        prog="workloads.image_classification.train", description="Train on classes of pictures."
    )
    parser.add("model", "", str, f"{RESNET}, efficientnet-b0 to b7, or {TINY}; by default {RESNET} on a GPU")
    parser.add("data-dir", "", str, "has train/CLASS/ and val/CLASS/; drawn pictures without it")
    parser.add("labels", "", str, f"CSV of several labels a picture, `{DRAWN}` for drawn ones")
    parser.add("side", "0", count, "of the square that pictures are made, in pixels; 0: as the model's own")
    parser.add("epochs", "10", positive)
    parser.add("batch-size", "32", positive, "of one rank")
    parser.add("learning-rate", "0.0125", float, "of one rank")
    parser.add("num-workers", "0", count, "processes that read pictures")
    parser.add("checkpoint-steps", "0", count, "between checkpoints, 0: at the end of epochs")
    options = parser.parse_args(arguments)
    model = options.model or (RESNET if torch.cuda.is_available() else TINY)
    if model not in MODELS:
        parser.error(f"MODEL {model!r} is none of {', '.join(MODELS)}")
    if options.labels not in ("", DRAWN) and not options.data_dir:
        parser.error(f"LABELS {options.labels!r} needs DATA_DIR, where its pictures are")
    side = options.side or {TINY: 32, "efficientnet-b7": 600}.get(model, 224)
    data_dir = Path(options.data_dir) if options.data_dir else None
    labels = Path(options.labels) if options.labels else None
    read = Options(model, data_dir, labels, side, options.learning_rate, options.batch_size)
    loaders, every = options.num_workers, options.checkpoint_steps
    return read, Plan(options.epochs, options.batch_size, checkpoint.shared_dir(), loaders, every)


def _pictures(
    known: Sequence[Any], held: Sequence[Any], side: int
) -> tuple[Dataset[Any], Dataset[Any] | None]:
    validation = Pictures(held, side, is_augmented=False) if held else None
    return Pictures(known, side, is_augmented=True), validation


if __name__ == "__main__":
    raise SystemExit(main())
