"""SCNN (Pan et al., 2018): lanes as segments of a picture, with messages passed along its rows and columns.

20,534,857 parameters. A picture is (3, 288, 512) and becomes 5 classes a pixel (background and four lanes) and four
chances that a lane is there.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

HEIGHT, WIDTH = 288, 512
CLASSES, LANES = 5, 4
# VGG16 without its last two poolings, so that features are an eighth of the picture
BACKBONE = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512)  # 0: halve
DILATED = (512, 512, 512)
CHANNELS, KERNEL = 128, 9
CLASS_WEIGHTS = (0.4, 1.0, 1.0, 1.0, 1.0)
EXISTENCE_WEIGHT = 0.1


class Messages(nn.Module):
    """Pass messages along one axis: each slice gets the activated convolution of the slice before, as that slice is by
    then. (n, c, h, w) -> the same; 0 along rows (downwards), 1 along columns (to the right), reversed or not.

    The slices are taken and joined once in each direction, and a slice is one-dimensional: per slice it costs a
    convolution, a clamp and an addition, and no copy of the picture.
    """

    def __init__(self, axis: int, is_reversed: bool) -> None:
        super().__init__()
        self.dim = 2 + axis
        self.is_reversed = is_reversed
        self.convolution = nn.Conv1d(CHANNELS, CHANNELS, KERNEL, padding=KERNEL // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        slices = list(x.unbind(self.dim))
        places = range(len(slices))[:: -1 if self.is_reversed else 1]
        for before, place in itertools.pairwise(places):
            slices[place] = slices[place] + functional.relu(self.convolution(slices[before]))
        return torch.stack(slices, self.dim)


class SCNN(nn.Module):
    """(n, 3, 288, 512) -> (n, 5, 288, 512) logits of the classes and (n, 4) logits of the lanes' existence."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*_backbone())
        self.narrow = nn.Sequential(
            nn.Conv2d(512, 1024, 3, padding=4, dilation=4, bias=False),
            nn.BatchNorm2d(1024),
            nn.ReLU(inplace=True),
            nn.Conv2d(1024, CHANNELS, 1, bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.ReLU(inplace=True),
        )
        self.messages = nn.Sequential(
            Messages(0, False), Messages(0, True), Messages(1, False), Messages(1, True)
        )
        self.classify = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(CHANNELS, CLASSES, 1))
        self.exist = nn.Sequential(
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(CLASSES * (HEIGHT // 16) * (WIDTH // 16), 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, LANES),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        coarse = self.classify(self.messages(self.narrow(self.backbone(pictures))))
        lanes = self.exist(functional.softmax(coarse, dim=1))
        fine = functional.interpolate(coarse, scale_factor=8, mode="bilinear", align_corners=True)
        return fine, lanes


def loss_of(fine: Tensor, lanes: Tensor, labels: Tensor, exists: Tensor) -> Tensor:
    """Cross-entropy of the classes, the background weighing less, and a tenth of that of the lanes' existence.
    `labels`: (n, 288, 512) classes; `exists`: (n, 4) of 0 or 1."""
    weights = torch.tensor(CLASS_WEIGHTS, device=fine.device)
    segments = functional.cross_entropy(fine.float(), labels, weights)
    existence = functional.binary_cross_entropy_with_logits(lanes.float(), exists)
    return segments + EXISTENCE_WEIGHT * existence


def _backbone() -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 3
    for width in BACKBONE:
        layers += _block(channels, width, 1) if width else [nn.MaxPool2d(2, 2)]
        channels = width or channels
    for width in DILATED:
        layers += _block(channels, width, 2)
    return layers


def _block(channels: int, width: int, dilation: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
