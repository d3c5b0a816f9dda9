"""3x3 convolutions with a quarter of the multiplications, on the CPU (Winograd's F(4x4, 3x3); Lavin and Gray,
2016).

Tiles of 6x6 pixels and the kernels are transformed by small matrices, multiplied per channel, and transformed
back to 4x4 output pixels. The transforms pay off with many channels. Not used on GPUs, where cuDNN selects
the algorithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LEAST_CHANNELS = 128
OUT, IN = 4, 6  # pixels of a tile along one side
_INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
_KERNEL = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
_OUTPUT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))


class Convolution(nn.Conv2d):
    """A 3x3 convolution that keeps the image's size; its padding equals its dilation."""

    def __init__(self, channels: int, width: int, dilation: int = 1, *, bias: bool = True) -> None:
        super().__init__(channels, width, 3, padding=dilation, dilation=dilation, bias=bias)

    def forward(self, pictures: Tensor) -> Tensor:
        is_float = pictures.dtype == self.weight.dtype == torch.float32 and not torch.is_autocast_enabled(
            "cpu"
        )
        if pictures.device.type != "cpu" or not is_float or self.in_channels < LEAST_CHANNELS:
            return super().forward(pictures)
        apply: Any = _Winograd.apply
        found: Tensor = apply(pictures, self.weight, self.dilation[0])
        return found if self.bias is None else found + self.bias[:, None, None]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """The division of (n, c, h, w) into `down` by `across` tiles of OUT x OUT pixels, for each phase of the
    dilation."""

    pictures: int
    height: int
    width: int
    dilation: int

    @property
    def down(self) -> int:
        return -(-self.height // (OUT * self.dilation))

    @property
    def across(self) -> int:
        return -(-self.width // (OUT * self.dilation))

    @property
    def in_picture(self) -> tuple[slice, slice, slice]:
        return slice(None), slice(0, self.height), slice(0, self.width)

    @property
    def in_padded(self) -> tuple[slice, slice, slice]:
        one = self.dilation
        return slice(None), slice(one, one + self.height), slice(one, one + self.width)

    def grid(self, like: Tensor, channels: int, further: int = 0) -> Tensor:
        """Return zeros of (n, down, OUT, dilation, across, OUT, dilation, channels), with `further` more tiles
        down and across; on the device of `like`, with its type."""
        one = self.dilation
        sides = self.down + further, OUT, one, self.across + further, OUT, one
        return like.new_zeros(self.pictures, *sides, channels)


class _Winograd(torch.autograd.Function):
    """Autograd function: (n, c, h, w), (k, c, 3, 3) and the dilation -> (n, k, h, w), all channels-last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dilation: int) -> Tensor:
        tiles = _Tiles(x.shape[0], x.shape[2], x.shape[3], dilation)
        inputs = _inputs(x.permute(0, 2, 3, 1), tiles)
        kernels = _matrix(_KERNEL, x) @ weight.permute(2, 3, 0, 1).reshape(9, -1)
        kernels = kernels.view(IN * IN, *weight.shape[:2])
        products = torch.bmm(inputs, kernels.transpose(1, 2))
        ctx.save_for_backward(inputs, kernels)
        ctx.tiles = tiles
        found = _matrix(_OUTPUT, x) @ products.flatten(1)
        return _picture(found, tiles, weight.shape[0]).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        inputs, kernels = ctx.saved_tensors
        tiles: _Tiles = ctx.tiles
        width, channels = kernels.shape[1:]
        gradient = _tiled(gradients[0].permute(0, 2, 3, 1), tiles)
        products = (_matrix(_OUTPUT, gradient).t() @ gradient).view(IN * IN, -1, width)
        of_kernels = torch.bmm(products.transpose(1, 2), inputs).view(IN * IN, -1)
        of_weight = (
            (_matrix(_KERNEL, gradient).t() @ of_kernels).view(3, 3, width, channels).permute(2, 3, 0, 1)
        )
        if not ctx.needs_input_grad[0]:
            return None, of_weight, None
        of_inputs = torch.bmm(products, kernels).view(IN * IN, -1)
        return _added(_matrix(_INPUT, gradient).t() @ of_inputs, tiles, channels), of_weight, None


def _matrix(rows: tuple[tuple[float, ...], ...], like: Tensor) -> Tensor:
    """Return the Kronecker square of the transform `rows`, which applies it to both sides of a tile that is
    stored as one vector; on the device of `like`, with its type."""
    one = like.new_tensor(rows)
    return torch.kron(one, one)


def _inputs(x: Tensor, tiles: _Tiles) -> Tensor:
    """Return the padded image cut into overlapping tiles of 6x6 pixels, transformed: (n, h, w, c) -> (36, number
    of tiles, c)."""
    channels, one = x.shape[3], tiles.dilation
    padded = x.new_zeros(
        tiles.pictures, (OUT * tiles.down + 2) * one, (OUT * tiles.across + 2) * one, channels
    )
    padded[tiles.in_padded] = x
    picture, row, pixel, channel = padded.stride()
    windows = padded.as_strided(
        (IN, IN, tiles.pictures, one, one, tiles.down, tiles.across, channels),
        (row * one, pixel * one, picture, row, pixel, OUT * one * row, OUT * one * pixel, channel),
    )
    return (_matrix(_INPUT, x) @ windows.reshape(IN * IN, -1)).view(IN * IN, -1, channels)


def _picture(found: Tensor, tiles: _Tiles, channels: int) -> Tensor:
    """Return the image assembled from output tiles: (16, tiles * channels) -> (n, h, w, channels)."""
    one = tiles.dilation
    sides = OUT, OUT, tiles.pictures, one, one, tiles.down, tiles.across, channels
    whole = found.view(sides).permute(2, 5, 0, 3, 6, 1, 4, 7)
    size = tiles.pictures, OUT * one * tiles.down, OUT * one * tiles.across, channels
    return whole.reshape(size)[tiles.in_picture]


def _tiled(gradient: Tensor, tiles: _Tiles) -> Tensor:
    """Return an image cut into output tiles: (n, h, w, channels) -> (16, tiles * channels), the reverse of
    `_picture`."""
    whole = tiles.grid(gradient, gradient.shape[3])
    size = tiles.pictures, OUT * tiles.dilation * tiles.down, OUT * tiles.dilation * tiles.across, -1
    whole.view(size)[tiles.in_picture] = gradient
    return whole.permute(2, 5, 0, 3, 6, 1, 4, 7).reshape(OUT * OUT, -1)


def _added(windows: Tensor, tiles: _Tiles, channels: int) -> Tensor:
    """Return the sum of windows that overlap by two pixels: (36, tiles * channels) -> (n, channels, h, w)."""
    one, whole = tiles.dilation, tiles.grid(windows, channels, further=1)
    sides = IN, IN, tiles.pictures, one, one, tiles.down, tiles.across, channels
    windows = windows.view(sides)
    for row, rows in enumerate((slice(0, OUT), slice(OUT, IN))):
        for column, columns in enumerate((slice(0, OUT), slice(OUT, IN))):
            part = windows[rows, columns].permute(2, 5, 0, 3, 6, 1, 4, 7)
            place = whole[:, row : row + tiles.down, :, :, column : column + tiles.across]
            place[:, :, : part.shape[2], :, :, : part.shape[5]] += part
    size = tiles.pictures, OUT * one * (tiles.down + 1), OUT * one * (tiles.across + 1), channels
    return whole.view(size)[tiles.in_padded].permute(0, 3, 1, 2)
