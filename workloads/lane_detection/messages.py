"""SCNN's message passing along one axis of an image, as one differentiable function.

To each slice the activated convolution of the previous, already updated slice is added, so slices are
computed in sequence. Work that does not depend on that order is done once: the gradient of the weight is one
product per tap over all slices, where separate convolutions would compute and add one per slice.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

KERNEL = 9


class Messages(nn.Module):
    """Message passing: (n, c, h, w) -> the same shape. `axis`: 0 passes along rows (downwards), 1 along columns (to
    the right). `is_reversed`: passes in the opposite direction."""

    def __init__(self, channels: int, axis: int, is_reversed: bool) -> None:
        super().__init__()
        self.is_reversed = is_reversed
        self._to_slices = (2, 0, 3, 1) if axis == 0 else (3, 0, 2, 1)
        self._to_picture = (1, 3, 0, 2) if axis == 0 else (1, 3, 2, 0)
        self.convolution = nn.Conv1d(channels, channels, KERNEL, padding=KERNEL // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.convolution.weight.to(x.dtype)
        apply: Any = _Passing.apply
        passed: Tensor = apply(x.permute(self._to_slices), weight, self.is_reversed)
        return passed.permute(self._to_picture)


class _Passing(torch.autograd.Function):
    """Autograd function: slices (s, n, l, c), weight (c, c, k) and direction -> slices. Each slice of length l is
    stored with zero padding, so that its windows are one copy and a convolution is one matrix product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, is_reversed: bool) -> Tensor:
        padded = _padded_like(x)
        inner = _inner(padded)
        pairs = _pairs(len(x), is_reversed)
        taps = weight.permute(2, 1, 0).flatten(0, 1)
        first = pairs[0][0] if pairs else 0
        inner[first] = x[first]
        is_active = torch.empty_like(inner, dtype=torch.bool)
        for before, place in pairs:
            message = _windows(padded[before]) @ taps
            torch.gt(message, 0, out=is_active[place])
            inner[place] = x[place] + message.clamp_(min=0)
        ctx.save_for_backward(padded, weight, is_active)
        ctx.is_reversed = is_reversed
        return inner

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        padded, weight, is_active = ctx.saved_tensors
        gradient = gradients[0].clone()
        messages = _padded_like(gradient)
        inner = _inner(messages)
        pairs = _pairs(len(gradient), ctx.is_reversed)
        taps = weight.flip(2).permute(2, 0, 1).flatten(0, 1)
        for before, place in reversed(pairs):
            inner[place] = gradient[place] * is_active[place]
            gradient[before] += _windows(messages[place]) @ taps
        return gradient, _weight_gradient(padded, inner, weight, ctx.is_reversed), None


def _weight_gradient(padded: Tensor, messages: Tensor, weight: Tensor, is_reversed: bool) -> Tensor:
    """Return the weight's gradient, (c, c, k), summed over all slices, with one matrix product per tap. `padded`,
    `messages`: the slices and the gradients of the messages, as in _Passing."""
    before, after = (padded[1:], messages[:-1]) if is_reversed else (padded[:-1], messages[1:])
    length = messages.shape[2]
    after = after.flatten(0, 2)
    taps = [before[:, :, tap : tap + length].flatten(0, 2).t() @ after for tap in range(weight.shape[2])]
    return torch.stack(taps).permute(2, 1, 0)


def _pairs(count: int, is_reversed: bool) -> list[tuple[int, int]]:
    """Return (previous slice, slice) for `count` slices in the order of passing; from the last to the first if
    `is_reversed`."""
    return list(itertools.pairwise(range(count)[:: -1 if is_reversed else 1]))


def _padded_like(x: Tensor) -> Tensor:
    count, pictures, length, channels = x.shape
    return x.new_zeros(count, pictures, length + KERNEL - 1, channels)


def _inner(padded: Tensor) -> Tensor:
    return padded[:, :, KERNEL // 2 : -(KERNEL // 2)]


def _windows(padded: Tensor) -> Tensor:
    """Return a copy of the windows of padded slices: (n, l + k - 1, c) -> (n, l, k * c)."""
    pictures, length, channels = padded.shape
    size = (pictures, length - KERNEL + 1, KERNEL * channels)
    # A copy: with the overlapping view, the product would be computed per image.
    return padded.as_strided(size, (padded.stride(0), channels, 1), padded.storage_offset()).contiguous()
