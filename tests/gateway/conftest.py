"""The loop's plant, for what needs no server, and the control plane with a job for what does."""

from tests.gateway.yard import yard
from tests.loop.conftest import plant

__all__ = ["plant", "yard"]
