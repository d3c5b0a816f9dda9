"""SCNN (Pan et al., 2018): lanes as segments of an image, with messages passed along rows and columns.

The paper's network has 20,534,857 parameters: from an image of (3, 288, 512) it computes 5 classes per pixel
(background and four lanes) and the probability of each lane's existence. The small one has the same layers
with an eighth of the channels, for images of a quarter of the size; for tests and machines without GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import convert_conv2d_weight_memory_format

from workloads.lane_detection.messages import Messages
from workloads.lane_detection.winograd import Convolution

CLASSES, LANES = 5, 4
# VGG16 without its last two poolings, so that features have an eighth of the image's size.
BACKBONE = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512)  # 0: halve
DILATED = (512, 512, 512)
WIDENED, NARROWED = 1024, 128
CLASS_WEIGHTS = (0.4, 1.0, 1.0, 1.0, 1.0)
EXISTENCE_WEIGHT = 0.1
SCALE = 8  # of the picture to the features


@dataclass(frozen=True, slots=True)
class Size:
    """Image size of a network, and the divisor of its channels."""

    name: str
    height: int
    width: int
    divisor: int = 1


FULL = Size("full", 288, 512)
SMALL = Size("small", 72, 128, 8)
SIZES = {size.name: size for size in (FULL, SMALL)}


class SCNN(nn.Module):
    """SCNN: (n, 3, h, w) -> (n, 5, h, w) class logits and (n, 4) logits of the lanes' existence."""

    def __init__(self, size: Size = FULL) -> None:
        super().__init__()
        last, widened, channels = (width // size.divisor for width in (DILATED[-1], WIDENED, NARROWED))
        self.backbone = nn.Sequential(*_backbone(size.divisor))
        self.narrow = nn.Sequential(
            Convolution(last, widened, dilation=4, bias=False),
            nn.BatchNorm2d(widened),
            nn.ReLU(inplace=True),
            nn.Conv2d(widened, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        directions = ((0, False), (0, True), (1, False), (1, True))
        self.messages = nn.Sequential(*(Messages(channels, *direction) for direction in directions))
        self.classify = nn.Sequential(nn.Dropout2d(0.1), nn.Conv2d(channels, CLASSES, 1))
        self.exist = nn.Sequential(
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(CLASSES * (size.height // 16) * (size.width // 16), 128),
            nn.ReLU(inplace=True),
            nn.Linear(128, LANES),
        )
        # Channels-last memory: convolutions, batch norms and message slices are all faster with it.
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        coarse = self.classify(self.messages(self.narrow(self.backbone(pictures))))
        lanes = self.exist(functional.softmax(coarse, dim=1))
        return enlarged(coarse), lanes


def enlarged(coarse: Tensor) -> Tensor:
    """Return (n, c, h, w) enlarged to (n, c, 8h, 8w) by bilinear interpolation with aligned corners."""
    if coarse.device.type != "cpu":
        return functional.interpolate(coarse, scale_factor=SCALE, mode="bilinear", align_corners=True)
    # Two matrix products: torch's own backward pass adds each gradient to its four neighbours one by one.
    down, across = (_between(size, coarse) for size in coarse.shape[2:])
    return down @ coarse.contiguous() @ across.t()


def loss_of(fine: Tensor, lanes: Tensor, labels: Tensor, exists: Tensor) -> Tensor:
    """Return the loss: cross-entropy of the class logits `fine`, with a lower weight of the background, plus a
    tenth of that of the logits `lanes` of the lanes' existence. `labels`: (n, h, w) classes; `exists`: (n, 4) of
    0 or 1."""
    weights = torch.tensor(CLASS_WEIGHTS, device=fine.device)
    segments = functional.cross_entropy(fine.float(), labels, weights)
    existence = functional.binary_cross_entropy_with_logits(lanes.float(), exists)
    return segments + EXISTENCE_WEIGHT * existence


def _between(size: int, like: Tensor) -> Tensor:
    """Return the matrix (SCALE * size, size) that interpolates `size` values linearly to SCALE times as many,
    with aligned ends; on the device of `like`, with its type."""
    many = SCALE * size
    places = torch.arange(many, dtype=torch.float64) * ((size - 1) / (many - 1))
    apart = (places[:, None] - torch.arange(size, dtype=torch.float64)).abs()
    return (1 - apart).clamp_(min=0).to(like)


def _backbone(divisor: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 3
    for width in BACKBONE:
        layers += _block(channels, width // divisor, 1) if width else [nn.MaxPool2d(2, 2)]
        channels = width // divisor or channels
    for width in DILATED:
        layers += _block(channels, width // divisor, 2)
    return layers


def _block(channels: int, width: int, dilation: int) -> list[nn.Module]:
    return [
        Convolution(channels, width, dilation),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    ]
