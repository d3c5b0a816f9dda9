"""The train kind: runs to completion, in one pod or in a gang of equal workers; preemptible, may exceed the
quota."""

from dataclasses import dataclass

from jobs.kinds.base import Batch


@dataclass(frozen=True, slots=True)
class Train(Batch):
    """The kind `train`: the defaults of Batch."""

    name: str = "train"
    label: str = "Train"
    pools_label: str = "Node pools for training"
