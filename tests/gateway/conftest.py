"""The loop's plant, for what needs no server."""

from tests.loop.conftest import plant

__all__ = ["plant"]
