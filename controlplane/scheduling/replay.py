"""Replay one decision: `python -m controlplane.scheduling.replay view.json [--explain JOB]`.

`view.json` is the output of `view_to_dict` (`-` reads standard input). Prints the whole plan as JSON, or with
`--explain` the decision on one job and its sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.plan import plan_to_dict
from controlplane.scheduling.reasons import describe
from controlplane.scheduling.suggestions import suggest
from controlplane.scheduling.view import ClusterView, view_from_dict

USAGE = "usage: python -m controlplane.scheduling.replay VIEW.json|- [--explain JOB]\n"


def replay(data: dict[str, Any], job: str | None = None) -> dict[str, Any]:
    """Return the plan for a stored view or, with `job`, the decision on that job with its sentence and the changes with
    which it would start, as JSON data. Raise KeyError if the plan has no such job, and as `view_from_dict`."""
    return _answer(view_from_dict(data), job)


def _answer(view: ClusterView, job: str | None) -> dict[str, Any]:
    plan = plan_to_dict(decide(view))
    if job is None:
        return plan
    for decision in plan["decisions"]:
        if decision["job"] == job:
            sentence = describe(decision["reason"], decision["details"])
            return {**decision, "sentence": sentence, "would_start_if": suggest(view, job)}
    raise KeyError(job)


def main(arguments: Sequence[str], out: TextIO, errors: TextIO) -> int:
    """Print the result to `out` and return the exit code: 0 done, 2 wrong usage or no view in the file, 3 no decision
    on this job. Errors go to `errors`."""
    arguments = [argument for argument in arguments if argument != "--explain"]
    if len(arguments) not in (1, 2):
        errors.write(USAGE)
        return 2
    source, job = arguments[0], arguments[1] if len(arguments) == 2 else None
    try:
        view = _read(source)
    except (OSError, ValueError) as error:
        errors.write(f"{source} cannot be read: {error}\n")
        return 2
    try:
        answer = _answer(view, job)
    except KeyError as missing:
        errors.write(f"No decision about job {missing} in this view.\n")
        return 3
    json.dump(answer, out, indent=2, sort_keys=True)
    out.write("\n")
    return 0


def _read(source: str) -> ClusterView:
    """Return the view in a file, or on standard input for "-". Raise OSError, or ValueError if it is none."""
    text = sys.stdin.read() if source == "-" else Path(source).read_text()
    try:
        return view_from_dict(json.loads(text))
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error}") from error
    except KeyError as missing:
        raise ValueError(f"it is no view: it lacks {missing}") from missing
    except TypeError as error:
        raise ValueError(f"it is no view: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], sys.stdout, sys.stderr))
