"""The networks that come along have their published sizes and compute what a plain implementation does."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

from workloads.image_classification.efficientnet import EfficientNet, channels_of
from workloads.image_classification.resnet import ResNet50
from workloads.lane_detection.messages import Messages
from workloads.lane_detection.scnn import SCNN, SMALL, enlarged, loss_of


def parameters(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("make", "published"),
    [
        (ResNet50, 25_557_032),
        (lambda: EfficientNet("b0"), 5_288_548),
        (lambda: EfficientNet("b7"), 66_347_960),
        (SCNN, 20_534_857),
    ],
)
def test_a_network_has_as_many_parameters_as_published(make, published):
    with torch.device("meta"):  # shapes without numbers: nothing is filled in
        assert parameters(make()) == published


@pytest.mark.parametrize(("channels", "width", "expected"), [(32, 2.0, 64), (32, 1.1, 32), (112, 1.4, 160)])
def test_scaled_channels_are_multiples_of_eight_and_never_much_smaller(channels, width, expected):
    assert channels_of(channels, width) == expected


def test_classifiers_take_other_sizes_and_learn():
    torch.manual_seed(0)
    for net in (ResNet50(classes=5), EfficientNet("b0", classes=5)):
        logits = net(torch.randn(2, 3, 64, 96))
        assert logits.shape == (2, 5)
        torch.autograd.backward(logits.square().mean())
        assert all(parameter.grad is not None for parameter in net.parameters())


def plain(messages: Messages, axis: int, x: torch.Tensor) -> torch.Tensor:
    """x[i] + relu(conv2d(x[i - 1])), slice by slice, by two-dimensional convolutions."""
    weight = messages.convolution.weight
    kernel, padding = (weight.unsqueeze(2), (0, 4)) if axis == 0 else (weight.unsqueeze(3), (4, 0))
    slices = list(x.split(1, 2 + axis))
    places = range(len(slices))[:: -1 if messages.is_reversed else 1]
    for before, place in itertools.pairwise(places):
        slices[place] = slices[place] + nn.functional.conv2d(slices[before], kernel, padding=padding).relu()
    return torch.cat(slices, 2 + axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_messages_and_their_gradients_are_those_of_the_plain_formula(axis, is_reversed):
    torch.manual_seed(0)
    messages = Messages(12, axis, is_reversed)
    x = torch.randn(2, 12, 7, 11)
    toward = torch.randn_like(x)
    found = []
    for way in (messages, lambda x: plain(messages, axis, x)):
        picture = x.clone().requires_grad_()
        out = way(picture)
        messages.zero_grad()
        torch.autograd.backward(out, toward)
        found.append((out.detach(), picture.grad, messages.convolution.weight.grad.clone()))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_scnn_gives_a_class_for_each_pixel_and_its_loss_is_low_for_the_truth_alone():
    torch.manual_seed(0)
    net = SCNN(SMALL)
    fine, lanes = net(torch.randn(2, 3, SMALL.height, SMALL.width))
    assert (fine.shape, lanes.shape) == ((2, 5, SMALL.height, SMALL.width), (2, 4))
    labels, exists = torch.zeros(2, SMALL.height, SMALL.width, dtype=torch.long), torch.zeros(2, 4)
    torch.autograd.backward(loss_of(fine, lanes, labels, exists))
    assert all(parameter.grad is not None for parameter in net.parameters())
    certain = torch.zeros_like(fine)
    certain[:, 0] = 50.0
    assert loss_of(certain, torch.full((2, 4), -50.0), labels, exists) < 1e-6
    assert loss_of(certain, torch.full((2, 4), 50.0), labels, exists) > 1.0


def test_pictures_are_enlarged_as_by_torch_forwards_and_backwards():
    torch.manual_seed(0)
    ours = torch.randn(2, 5, 9, 16).to(memory_format=torch.channels_last).requires_grad_()
    peer = ours.detach().clone().requires_grad_()
    fine = enlarged(ours)
    like = functional.interpolate(peer, scale_factor=8, mode="bilinear", align_corners=True)
    assert torch.allclose(fine, like, atol=1e-5)
    torch.autograd.backward(fine.square().mean())
    torch.autograd.backward(like.square().mean())
    assert torch.allclose(ours.grad, peer.grad, atol=1e-6)
