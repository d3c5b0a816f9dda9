"""The networks that come along have their published sizes and compute what a plain implementation does."""

import itertools

import pytest
import torch
from torch import nn

from workloads.image_classification.efficientnet import EfficientNet, channels_of
from workloads.image_classification.resnet import ResNet50
from workloads.lane_detection.scnn import CHANNELS, SCNN, Messages, loss_of


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


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_messages_are_those_of_the_plain_formula(axis, is_reversed):
    """x[i] += relu(conv2d(x[i - 1])), slice by slice, on the whole picture and by two-dimensional convolutions."""
    torch.manual_seed(0)
    messages = Messages(axis, is_reversed)
    x = torch.randn(2, CHANNELS, 7, 11)
    weight = messages.convolution.weight
    kernel, padding = (weight.unsqueeze(2), (0, 4)) if axis == 0 else (weight.unsqueeze(3), (4, 0))
    plain = x.clone()
    places = range(x.shape[2 + axis])[:: -1 if is_reversed else 1]
    for before, place in itertools.pairwise(places):
        message = nn.functional.conv2d(plain.narrow(2 + axis, before, 1), kernel, padding=padding)
        plain.narrow(2 + axis, place, 1).add_(message.relu())
    torch.testing.assert_close(messages(x), plain, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_scnn_gives_a_class_for_each_pixel_and_learns():
    torch.manual_seed(0)
    net = SCNN().eval()
    with torch.no_grad():
        fine, lanes = net(torch.randn(1, 3, 288, 512))
    assert (fine.shape, lanes.shape) == ((1, 5, 288, 512), (1, 4))
    labels, exists = torch.zeros(1, 288, 512, dtype=torch.long), torch.zeros(1, 4)
    certain = torch.zeros_like(fine)
    certain[:, 0] = 50.0
    assert loss_of(certain, torch.full((1, 4), -50.0), labels, exists) < 1e-6
    assert loss_of(certain, torch.full((1, 4), 50.0), labels, exists) > 1.0
