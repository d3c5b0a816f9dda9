"""Programs of ours that run in pods: the text of a module, run by the image's python3.

Pure, except that each module's text is read from its file once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

_START_ERRORS = ("StartError", "ContainerCannotRun", "RunContainerError")


@cache
def python(program: ModuleType, *below: ModuleType) -> tuple[str, ...]:
    """Return the command; the caller may append arguments. `below`: our modules that the program imports from, whose
    text comes first. No program may contain `$(`, which Kubernetes would replace as a variable."""
    text = inspect.getsource(program)
    for module in below:
        text = re.sub(rf"^from {re.escape(module.__name__)} import .*\n", "", text, flags=re.MULTILINE)
    return ("python3", "-I", "-c", "".join(map(inspect.getsource, below)) + text)


def lacks_python(ended: Mapping[str, Any]) -> bool:
    """Return whether the container ended because its image lacks python3."""
    return ended.get("reason") in _START_ERRORS
