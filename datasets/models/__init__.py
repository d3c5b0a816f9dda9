"""What exists of data. One file a noun; everything is importable from here."""

from datasets.models.code import CodeTree
from datasets.models.datasets import Dataset, DatasetTag, DatasetVersion
from datasets.models.volumes import Snapshot, Volume, VolumeUse

__all__ = ["CodeTree", "Dataset", "DatasetTag", "DatasetVersion", "Snapshot", "Volume", "VolumeUse"]
