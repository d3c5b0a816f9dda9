"""EfficientNet-B0 to B7 (Tan and Le, 2019) in plain torch: with 1,000 classes B0 has 5,288,548 parameters, B7
66,347,960."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# Stages of B0: (expansion, kernel, stride, output channels, blocks).
STAGES = (
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
)  # fmt: skip
# Variants: (width, depth, dropout).
VARIANTS = {
    "b0": (1.0, 1.0, 0.2), "b1": (1.0, 1.1, 0.2), "b2": (1.1, 1.2, 0.3), "b3": (1.2, 1.4, 0.3),
    "b4": (1.4, 1.8, 0.4), "b5": (1.6, 2.2, 0.4), "b6": (1.8, 2.6, 0.5), "b7": (2.0, 3.1, 0.5),
}  # fmt: skip
# Probability of skipping the last block's branch in training; increases linearly with depth.
DROPPED_BLOCKS = 0.2


def channels_of(channels: float, width: float) -> int:
    """Return `channels` times `width`, rounded to a multiple of 8 that is not more than a tenth below it."""
    scaled = channels * width
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


class Excitation(nn.Module):
    """Squeeze-and-excitation: weights channels by their mean over the image, through `squeezed` inner
    channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weights = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        weighed: Tensor = x * self.weights(x)
        return weighed


class InvertedBottleneck(nn.Module):
    """Expand channels, depthwise convolution, squeeze-and-excitation, project; adds the input if shapes
    agree."""

    def __init__(self, shape: tuple[int, int, int, int, int], dropped: float) -> None:
        super().__init__()
        expansion, kernel, stride, before, after = shape
        inside = before * expansion
        widen = _convolution(before, inside, 1) if expansion != 1 else []
        self.branch = nn.Sequential(
            *widen,
            *_convolution(inside, inside, kernel, stride, groups=inside),
            Excitation(inside, max(1, before // 4)),
            *_convolution(inside, after, 1)[:-1],
        )
        self.is_residual = stride == 1 and before == after
        self.dropped = dropped

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return x + self._thinned(branch) if self.is_residual else branch

    def _thinned(self, branch: Tensor) -> Tensor:
        """Return the branch with 0 for a random part of a training batch's images, and scaled by 1 / (1 - `dropped`)
        for the others (stochastic depth); unchanged outside of training."""
        if not self.training or self.dropped == 0:
            return branch
        kept = torch.rand(len(branch), 1, 1, 1, device=branch.device) >= self.dropped
        return branch * kept / (1 - self.dropped)


class EfficientNet(nn.Module):
    """EfficientNet: (n, 3, h, w), for B7 usually 600x600 -> (n, classes) logits."""

    def __init__(self, variant: str = "b7", classes: int = 1000) -> None:
        super().__init__()
        width, depth, dropout = VARIANTS[variant]
        first, last = channels_of(32, width), channels_of(1280, width)
        blocks, channels = _blocks(width, depth)
        self.features = nn.Sequential(
            *_convolution(3, first, 3, 2), *blocks, *_convolution(channels, last, 1)
        )
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout, inplace=True), nn.Linear(last, classes)
        )

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(pictures))
        return logits


def _blocks(width: float, depth: float) -> tuple[list[nn.Module], int]:
    """Return the blocks of all stages, and the number of output channels of the last. `width`, `depth`: factors for
    the channels and the number of blocks of B0."""
    counts = [math.ceil(count * depth) for *_, count in STAGES]
    total, blocks, channels = sum(counts), list[nn.Module](), channels_of(32, width)
    for (expansion, kernel, stride, out, _), count in zip(STAGES, counts, strict=True):
        after = channels_of(out, width)
        for place in range(count):
            dropped = DROPPED_BLOCKS * len(blocks) / total
            shape = (expansion, kernel, stride if place == 0 else 1, channels, after)
            blocks.append(InvertedBottleneck(shape, dropped))
            channels = after
    return blocks, channels


def _convolution(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Return a convolution from `before` to `after` channels with batch norm and activation. It is padded, so
    that the image size changes only by the stride."""
    return [
        nn.Conv2d(before, after, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
        nn.SiLU(inplace=True),
    ]
