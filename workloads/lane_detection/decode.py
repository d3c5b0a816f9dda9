"""Convert the network's output to lanes in the TuSimple format."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from workloads.lane_detection.labels import HEIGHT, WIDTH
from workloads.lane_detection.scnn import LANES

EXISTS, POINT = 0.5, 0.3
# Size of the blur kernel in pixels, for an image of this width.
BLUR, BLURRED_WIDTH = 9, 512
NOTHING = -2.0


def lanes_of(fine: Tensor, exists: Tensor, rows: Sequence[float]) -> list[list[float]]:
    """Return the lanes of one image, each with an x for each y of `rows`, in the pixels of the original image.
    `fine`: (5, h, w) class logits; `exists`: (4,) logits of the lanes' existence. Omits lanes that do not exist
    or have fewer than two points."""
    chances = functional.softmax(fine.float(), dim=0)
    height, width = chances.shape[1:]
    kernel = round(BLUR * width / BLURRED_WIDTH) | 1
    smooth = functional.avg_pool2d(chances, kernel, 1, kernel // 2, count_include_pad=False)
    places = torch.tensor([min(height - 1, int(row * height / HEIGHT)) for row in rows], device=fine.device)
    best, columns = smooth[1:, places].max(dim=2)
    lanes = []
    for lane in range(LANES):
        if torch.sigmoid(exists[lane]) <= EXISTS:
            continue
        xs = (columns[lane].float() / width * WIDTH).tolist()
        points = [x if chance > POINT else NOTHING for x, chance in zip(xs, best[lane].tolist(), strict=True)]
        if sum(x >= 0 for x in points) >= 2:
            lanes.append(points)
    return lanes
