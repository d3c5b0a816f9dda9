"""ResNet-50 (He et al., 2016, version 1.5: the stride is in the 3x3 convolution) in plain torch.

25,557,032 parameters with 1,000 classes. torchvision has the same network, but its compiled part does not
load on all machines on which torch does.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

# (blocks, width) of the four stages; a block's output has four times the width.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4


class Bottleneck(nn.Module):
    """Bottleneck block: 1x1 down, 3x3, 1x1 up, added to the input: (n, channels, h, w) -> (n, 4 x width, h /
    stride, w / stride)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        has_own_shape = stride != 1 or channels != out
        self.shortcut: nn.Module = (
            nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
            if has_own_shape
            else nn.Identity()
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        joined: Tensor = self.relu(self.branch(x) + self.shortcut(x))
        return joined


class ResNet50(nn.Module):
    """ResNet-50: (n, 3, h, w), usually 224x224 -> (n, classes) logits."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        self.stages = nn.Sequential(*_stages())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512 * EXPANSION, classes))
        self.apply(_initialise)
        # Channels-last memory: convolutions of bfloat16 on a GPU take half the time with it.
        convert_conv2d_weight_memory_format(self, torch.channels_last)

    def forward(self, pictures: Tensor) -> Tensor:
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.head(self.stages(self.stem(pictures)))
        return logits


def _stages() -> list[nn.Module]:
    blocks: list[nn.Module] = []
    channels = 64
    for number, (count, width) in enumerate(STAGES):
        for place in range(count):
            stride = 2 if number > 0 and place == 0 else 1
            blocks.append(Bottleneck(channels, width, stride))
            channels = width * EXPANSION
    return blocks


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
