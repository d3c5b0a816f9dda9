"""Convolutions by Winograd's algorithm, beside torch's own with the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workloads.lane_detection.winograd import LEAST_CHANNELS, Convolution


def pair(channels: int, width: int, dilation: int, *, bias: bool) -> tuple[Convolution, nn.Conv2d]:
    torch.manual_seed(0)
    ours = Convolution(channels, width, dilation, bias=bias).to(memory_format=torch.channels_last)
    peer = nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation, bias=bias)
    peer.load_state_dict(ours.state_dict())
    return ours, peer


def close(ours: Tensor, peer: Tensor) -> bool:
    """Equal to 1e-4 of the largest."""
    return bool((ours - peer).abs().max() <= 1e-4 * peer.abs().max())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("dilation", "height", "width"), [(1, 8, 12), (1, 9, 11), (2, 10, 7), (4, 13, 18), (4, 3, 2), (1, 1, 1)]
)
def test_outputs_and_gradients_are_those_of_torch(dilation, height, width, bias):
    ours, peer = pair(LEAST_CHANNELS, 6, dilation, bias=bias)
    x = torch.randn(2, LEAST_CHANNELS, height, width)
    inputs = x.clone(memory_format=torch.channels_last).requires_grad_(), x.clone().requires_grad_()
    found, expected = ours(inputs[0]), peer(inputs[1])
    assert "_Winograd" in type(found.grad_fn).__name__ or bias
    gradient = torch.randn_like(expected)
    torch.autograd.backward(found, gradient)
    torch.autograd.backward(expected, gradient)
    assert found.shape == expected.shape
    assert close(found, expected)
    assert close(inputs[0].grad, inputs[1].grad)
    for one, other in zip(ours.parameters(), peer.parameters(), strict=True):
        assert close(one.grad, other.grad)


@pytest.mark.parametrize(
    ("channels", "dtype"), [(LEAST_CHANNELS - 1, torch.float32), (LEAST_CHANNELS, torch.float64)]
)
def test_few_channels_and_other_types_are_left_to_torch(channels, dtype):
    ours, peer = (one.to(dtype) for one in pair(channels, 4, 1, bias=True))
    x = torch.randn(1, channels, 6, 6, dtype=dtype)
    assert "_Winograd" not in type(ours(x).grad_fn).__name__
    assert close(ours(x), peer(x))


def test_a_first_layer_needs_no_gradient_of_its_input():
    ours, _ = pair(LEAST_CHANNELS, 4, 1, bias=False)
    torch.autograd.backward(ours(torch.randn(1, LEAST_CHANNELS, 6, 6)).sum())
    assert ours.weight.grad is not None
