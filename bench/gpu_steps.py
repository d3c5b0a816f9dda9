"""Training steps of the workloads' networks on a GPU, beside a straightforward implementation. Used by bench.gpu.

As in workloads.common.training: forward and backward pass under bfloat16 autocast. The images are already in the GPU's
memory.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import convert_conv2d_weight_memory_format

from bench.harness import Row
from bench.scnn import PlainSCNN
from workloads.image_classification.resnet import ResNet50
from workloads.lane_detection.scnn import FULL, SCNN, loss_of

ROUNDS, STEPS = 7, 5
LANE_BATCH, CLASS_BATCH = 24, 64


class PlainResNet(ResNet50):
    """ResNet-50 in torch's default memory layout."""

    def __init__(self) -> None:
        super().__init__()
        convert_conv2d_weight_memory_format(self, torch.contiguous_format)

    def forward(self, pictures: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(self.stem(pictures)))
        return logits


def rows() -> list[Row]:
    return [scnn_row(), resnet_row()]


def scnn_row() -> Row:
    ours = SCNN(FULL).cuda().train()
    peer = PlainSCNN(ours.cpu(), FULL).cuda().train()
    ours.cuda()
    pictures = torch.randn(LANE_BATCH, 3, FULL.height, FULL.width, device="cuda")
    labels = torch.randint(0, 5, (LANE_BATCH, FULL.height, FULL.width), device="cuda")
    exists = torch.zeros(LANE_BATCH, 4, device="cuda")

    def loss(net: nn.Module) -> Tensor:
        fine, lanes = net(pictures)
        return loss_of(fine, lanes, labels, exists)

    return row(
        f"SCNN training step on a GPU, {LANE_BATCH} pictures", ours, peer, loss, "a convolution per slice"
    )


def resnet_row() -> Row:
    torch.manual_seed(0)
    ours = ResNet50().cuda().train()
    peer = PlainResNet().cuda().train()
    pictures = torch.randn(CLASS_BATCH, 3, 224, 224, device="cuda")
    targets = torch.randint(0, 1000, (CLASS_BATCH,), device="cuda")

    def loss(net: nn.Module) -> Tensor:
        return functional.cross_entropy(net(pictures), targets)

    return row(
        f"ResNet-50 training step on a GPU, {CLASS_BATCH} pictures",
        ours,
        peer,
        loss,
        "torch's default layout",
    )


def row(work: str, ours: nn.Module, peer: nn.Module, loss: Callable[[nn.Module], Tensor], name: str) -> Row:
    """Return the row `work` with the milliseconds of a step of both networks, measured in turn. `loss`: runs a
    network and returns its loss; `name`: what the peer is called."""
    pairs = [(step_ms(ours, loss), step_ms(peer, loss)) for _ in range(ROUNDS + 1)][1:]
    samples, peer_samples = zip(*pairs, strict=True)
    return Row(work, "<= 1x the peer", "ms", samples, peer=name, peer_samples=peer_samples, ratio_limit=1.0)


def step_ms(net: nn.Module, loss: Callable[[nn.Module], Tensor]) -> float:
    """Return the mean milliseconds of a step over STEPS steps. `loss`: runs the network and returns its loss."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            found = loss(net)
        torch.autograd.backward(found)
        net.zero_grad()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STEPS * 1000
