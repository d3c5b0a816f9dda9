"""Fixtures: the loop's plant for tests without a server, and a control plane with a job for the others."""

from tests.gateway.yard import yard
from tests.loop.conftest import plant

__all__ = ["plant", "yard"]
