"""What exists of data. One file a noun; everything is importable from here."""

from datasets.models.code import CodeTree

__all__ = ["CodeTree"]
