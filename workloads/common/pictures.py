"""Pictures as tensors."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

# ImageNet's
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalised(picture: Image.Image) -> Tensor:
    """(h, w) RGB -> (3, h, w) with ImageNet's mean and deviation taken out."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
