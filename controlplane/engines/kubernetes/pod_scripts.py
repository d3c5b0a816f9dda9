"""Commands that run our programs in pods: the image's python3 runs the source text of a module.

No I/O, except that each module's text is read from its file once.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from controlplane.engines.kubernetes import pod_program

# The reasons of containers whose program could not be started.
START_ERRORS = ("StartError", "ContainerCannotRun", "RunContainerError")


@cache
def python(program: ModuleType, *below: ModuleType) -> tuple[str, ...]:
    """Return a container's command that runs the text of `program`; arguments may be appended. `below`: modules of
    ours, besides pod_program, from which the program imports; their text comes first. No text may contain "$(", which
    Kubernetes would expand."""
    text = "".join(map(inspect.getsource, below)) + inspect.getsource(program)
    text = text.replace("from __future__ import annotations\n", "")
    for module in (pod_program, *below):
        text = re.sub(rf"^from {re.escape(module.__name__)} import .*\n", "", text, flags=re.MULTILINE)
    return ("python3", "-I", "-c", inspect.getsource(pod_program) + text)


def last_line(ended: Mapping[str, Any]) -> str:
    """Return the last line of a container's termination message, "" without one. `ended`: its `terminated` state."""
    return "".join(str(ended.get("message") or "").strip().splitlines()[-1:])


def without_python(ended: Mapping[str, Any], work: str) -> str:
    """Return the message for a container that could not start because its image lacks python3; "" for any other end.
    `work`: what the container does, such as "fills caches"."""
    if ended.get("reason") not in START_ERRORS:
        return ""
    return f"The container that {work} has no python3: name an image with it in the cluster's setting code_image."
