"""Train: runs to its end, in one pod or in a gang of equal workers; may borrow, and may be preempted."""

from dataclasses import dataclass

from jobs.kinds.base import Batch


@dataclass(frozen=True, slots=True)
class Train(Batch):
    """See jobs.kinds.base.Kind."""

    name: str = "train"
    label: str = "Train"
    pools_label: str = "Node pools for training"
