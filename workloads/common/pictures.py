"""Convert images to tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from workloads.common.records import BadRecord

# Mean and deviation of ImageNet.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@contextmanager
def opened(file: Path) -> Iterator[Image.Image]:
    """Context manager that opens an image; its block decodes it. Raises BadRecord, with the file's name, if that
    fails."""
    try:
        with Image.open(file) as picture:
            yield picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadRecord(f"{file} cannot be read: {error}") from error


def normalised(picture: Image.Image) -> Tensor:
    """Return an RGB image of (h, w) pixels as a (3, h, w) tensor, normalised by ImageNet's mean and
    deviation."""
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(DEVIATION).view(3, 1, 1)
