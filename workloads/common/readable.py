"""A data set in which some samples may turn out to be broken when they are read."""

from __future__ import annotations

from collections.abc import Sized
from functools import partial
from typing import Any, cast

from torch.utils.data import Dataset

from workloads.common.records import BadRecord, Skipped


class Readable(Dataset[Any]):
    """The samples of `data`. A broken one is replaced by the next readable one, so that batches keep their size.
    Indexing raises TooManyBadRecords beyond the limit of `skipped`, BadRecord if no sample is readable. Each data
    loading process counts separately."""

    def __init__(self, data: Dataset[Any], skipped: Skipped) -> None:
        self._data, self._skipped = data, skipped
        self._count = len(cast(Sized, data))
        self._broken: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        for further in range(self._count):
            number = (index + further) % self._count
            if number in self._broken:
                continue
            sample = self._skipped.read(f"sample {number}", partial(self._data.__getitem__, number))
            if sample is not None:
                return sample
            self._broken.add(number)
        raise BadRecord("No sample can be read.")
