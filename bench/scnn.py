"""SCNN on the CPU beside a straightforward implementation with the same weights, in CPU time of one thread.

Straightforward: each slice is a view of the picture that goes through a two-dimensional convolution, autograd derives
the backward pass slice by slice, and the slices are joined at the end. Run: python -m bench.scnn
"""

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from bench.harness import Row, report
from workloads.lane_detection.messages import Messages
from workloads.lane_detection.scnn import FULL, NARROWED, SCNN, loss_of

ROUNDS, STEPS = 7, 3
PICTURES = 4
EQUAL_TO = 1e-4


class Plain(nn.Module):
    """The same messages, as the formula is written."""

    def __init__(self, messages: Messages, axis: int) -> None:
        super().__init__()
        self.messages, self.axis = messages, axis

    def forward(self, x: Tensor) -> Tensor:
        weight, dim = self.messages.convolution.weight, 2 + self.axis
        kernel, padding = (weight.unsqueeze(2), (0, 4)) if self.axis == 0 else (weight.unsqueeze(3), (4, 0))
        slices = list(torch.split(x, 1, dim))
        places = range(len(slices))[:: -1 if self.messages.is_reversed else 1]
        for before, place in itertools.pairwise(places):
            slices[place] = (
                slices[place] + nn.functional.conv2d(slices[before], kernel, padding=padding).relu()
            )
        return torch.cat(slices, dim)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = SCNN().train()
    passed = [module for module in net.messages if isinstance(module, Messages)]
    plain = nn.Sequential(
        *(Plain(messages, axis) for messages, axis in zip(passed, (0, 0, 1, 1), strict=True))
    )
    report("scnn", [messages_row(net.messages, plain), step_row(net, plain)])


def messages_row(ours: nn.Module, plain: nn.Module) -> Row:
    """Forward and backward pass of the messages alone, in turn with the peer."""
    x = torch.randn(PICTURES, NARROWED, FULL.height // 8, FULL.width // 8)
    difference = float((ours(x) - plain(x)).abs().max().detach())
    pairs = [
        (cpu_ms(lambda: learned(ours, x)), cpu_ms(lambda: learned(plain, x))) for _ in range(ROUNDS + 1)
    ][1:]
    return row("SCNN message passing, forward and backward, 4 pictures", pairs, difference)


def step_row(net: SCNN, plain: nn.Sequential) -> Row:
    """A whole training step of one picture, in turn with the peer."""
    x, labels = (
        torch.randn(1, 3, FULL.height, FULL.width),
        torch.zeros(1, FULL.height, FULL.width, dtype=torch.long),
    )
    ours, outputs = net.messages, []

    def step(messages: nn.Sequential) -> None:
        net.messages = messages
        torch.manual_seed(1)  # the same drop-out
        fine, lanes = net(x)
        outputs.append(fine.detach())
        torch.autograd.backward(loss_of(fine, lanes, labels, torch.zeros(1, 4)))
        net.zero_grad()

    pairs = [(cpu_ms(lambda: step(ours)), cpu_ms(lambda: step(plain))) for _ in range(STEPS + 1)][1:]
    return row("SCNN training step, one picture", pairs, float((outputs[0] - outputs[1]).abs().max()))


def learned(module: nn.Module, x: Tensor) -> None:
    torch.autograd.backward(module(x.clone().requires_grad_()).square().mean())
    module.zero_grad()


def cpu_ms(work: Callable[[], None]) -> float:
    """CPU milliseconds: other programs on the machine do not count."""
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
        peer="a convolution per slice",
        peer_samples=peer,
        ratio_limit=1 / 1.3,
        note=f"outputs differ by at most {difference:.1e}",
    )


if __name__ == "__main__":
    main()
