"""SCNN on the CPU beside a straightforward implementation with the same weights, in CPU time of one thread.

Straightforward means: torch's default layout, each slice is a view of the image that goes through a two-dimensional
convolution, autograd derives the backward pass slice by slice, and the slices are joined at the end; all
convolutions are torch's own.
Run: python -m bench.scnn
"""

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import convert_conv2d_weight_memory_format

from bench.harness import Row, report
from workloads.lane_detection.messages import Messages
from workloads.lane_detection.scnn import FULL, NARROWED, SCNN, SMALL, Size, loss_of
from workloads.lane_detection.winograd import Convolution

ROUNDS, STEPS = 7, 5
PICTURES = 4
BATCH_SIZE = 24  # the default of workloads.lane_detection.train
# Largest difference, as a part of the largest output, at which two layouts count as equal: torch sums the
# batch norms of the faster layout in plain float32.
EQUAL_TO = 1e-4
PEER = "a convolution per slice, default layout"


class PlainMessages(nn.Module):
    """Message passing as in the formula: one convolution per slice."""

    def __init__(self, messages: Messages, axis: int) -> None:
        super().__init__()
        self.messages, self.axis = messages, axis

    def forward(self, x: Tensor) -> Tensor:
        weight, dim = self.messages.convolution.weight, 2 + self.axis
        kernel, padding = (weight.unsqueeze(2), (0, 4)) if self.axis == 0 else (weight.unsqueeze(3), (4, 0))
        slices = list(torch.split(x, 1, dim))
        places = range(len(slices))[:: -1 if self.messages.is_reversed else 1]
        for before, place in itertools.pairwise(places):
            slices[place] = slices[place] + functional.conv2d(slices[before], kernel, padding=padding).relu()
        return torch.cat(slices, dim)


class PlainSCNN(SCNN):
    """The same network in torch's default layout, with plain message passing."""

    def __init__(self, net: SCNN, size: Size) -> None:
        super().__init__(size)
        self.load_state_dict(net.state_dict())
        self.messages = plain(self.messages)
        for parent in list(self.modules()):
            for name, child in parent.named_children():
                if isinstance(child, Convolution):
                    setattr(parent, name, plain_convolution(child))
        convert_conv2d_weight_memory_format(self, torch.contiguous_format)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        coarse = self.classify(self.messages(self.narrow(self.backbone(pictures))))
        lanes = self.exist(functional.softmax(coarse, dim=1))
        return functional.interpolate(coarse, scale_factor=8, mode="bilinear", align_corners=True), lanes


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report(
        "scnn",
        [
            messages_row(SCNN().train()),
            step_row(f"SCNN training step, the small network, {BATCH_SIZE} pictures", SMALL, BATCH_SIZE),
            step_row("SCNN training step, the full network, one picture", FULL, 1),
        ],
    )


def plain(messages: nn.Module) -> nn.Sequential:
    """Return the peer of the message passing in four directions, with the same weights."""
    found = [module for module in messages.children() if isinstance(module, Messages)]
    return nn.Sequential(*(PlainMessages(one, axis) for one, axis in zip(found, (0, 0, 1, 1), strict=True)))


def plain_convolution(ours: Convolution) -> nn.Conv2d:
    """Return torch's own convolution with the weights of `ours`."""
    peer = nn.Conv2d(
        ours.in_channels, ours.out_channels, 3, padding=ours.dilation[0], dilation=ours.dilation[0],
        bias=ours.bias is not None,
    )  # fmt: skip
    peer.load_state_dict(ours.state_dict())
    return peer


def messages_row(net: SCNN) -> Row:
    """Return the row of forward and backward pass of message passing alone, measured in turn with the peer."""
    x = torch.randn(PICTURES, NARROWED, FULL.height // 8, FULL.width // 8)
    ours, peer = net.messages, plain(net.messages)
    difference = apart(ours(x).detach(), peer(x).detach())
    pairs = [(cpu_ms(lambda: learned(ours, x)), cpu_ms(lambda: learned(peer, x))) for _ in range(ROUNDS + 1)][
        1:
    ]
    return row("SCNN message passing, forward and backward, 4 pictures", pairs, difference)


def step_row(work: str, size: Size, pictures: int) -> Row:
    """Return the row of a whole training step (forward, loss, backward) on a batch of `pictures` images, measured
    in turn with the peer."""
    torch.manual_seed(0)
    ours = SCNN(size).train()
    peer = PlainSCNN(ours, size).train()
    x = torch.randn(pictures, 3, size.height, size.width)
    labels, exists = torch.randint(0, 5, (pictures, size.height, size.width)), torch.zeros(pictures, 4)
    outputs: list[Tensor] = []

    def step(net: SCNN) -> None:
        # Both networks must draw the same drop-out.
        torch.manual_seed(1)
        fine, lanes = net(x)
        outputs.append(fine.detach())
        torch.autograd.backward(loss_of(fine, lanes, labels, exists))
        net.zero_grad()

    pairs = [(cpu_ms(lambda: step(ours)), cpu_ms(lambda: step(peer))) for _ in range(STEPS + 1)][1:]
    return row(work, pairs, apart(outputs[0], outputs[1]))


def apart(ours: Tensor, peer: Tensor) -> float:
    """Return the largest difference between two outputs, relative to the largest value of the peer's."""
    return float((ours - peer).abs().max() / peer.abs().max())


def learned(module: nn.Module, x: Tensor) -> None:
    torch.autograd.backward(module(x.clone().requires_grad_()).square().mean())
    module.zero_grad()


def cpu_ms(work: Callable[[], None]) -> float:
    """Return the CPU milliseconds of this process for a call of `work`."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def row(work: str, pairs: list[tuple[float, float]], difference: float) -> Row:
    if difference > EQUAL_TO:
        raise AssertionError(f"{work}: outputs differ by {difference:.1e}")
    ours, peer = zip(*pairs, strict=True)
    return Row(
        work,
        ">= 1.3x faster, equal to 1e-4",
        "ms",
        ours,
        peer=PEER,
        peer_samples=peer,
        ratio_limit=1 / 1.3,
        note=f"outputs differ by at most {difference:.1e} of the largest",
    )


if __name__ == "__main__":
    main()
