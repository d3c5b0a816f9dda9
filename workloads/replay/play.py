"""Replay a recorded training run slowly: `python -m workloads.replay.play`, for demos on a small machine.

`digits.jsonl` is the output of the quickstart on one CPU. Its lines are printed again over DURATION_SECONDS
(default 600): real numbers of a real run, at no cost. The first line of the log says that it is a replay. The
position is stored in the working directory, which a job keeps over all its attempts, so that a preempted
replay continues.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path

RECORDING = Path(__file__).with_name("digits.jsonl")
POSITION = Path("replay-position")
LINE_EVERY_SECONDS = 2.0


def main() -> int:
    """Print lines until the end, or until SIGTERM. Return 0, or 143 after SIGTERM."""
    duration = float(os.environ.get("DURATION_SECONDS", "600"))
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    recorded = [json.loads(line) for line in RECORDING.read_text().splitlines()]
    lines = max(len(recorded), round(duration / LINE_EVERY_SECONDS))
    start = kept_position(lines)
    say(f"replay of a recorded run of the quickstart, over {duration:g} s")
    if start:
        say(f"resumed at line {start + 1} of {lines}")
    for number in range(start, lines):
        say(json.dumps(line_at(recorded, number, lines, duration)))
        keep_position(number + 1)
        if stopped.wait(duration / lines):
            return 143
    return 0


def kept_position(lines: int) -> int:
    """Return how many of `lines` lines an earlier attempt printed; 0 if it printed none or all, or the position
    cannot be read."""
    try:
        position = int(POSITION.read_text())
    except (OSError, ValueError):
        return 0
    return position if 0 < position < lines else 0


def keep_position(printed: int) -> None:
    """Write how many lines were `printed`, atomically."""
    beside = POSITION.with_suffix(".new")
    beside.write_text(str(printed))
    # By rename, so that a kill leaves the old or the new number.
    beside.replace(POSITION)


def line_at(recorded: list[dict[str, float]], number: int, lines: int, duration: float) -> dict[str, float]:
    """Return line `number` of `lines`: the recorded values of that part of the run, with step and times as in a run
    of `duration` seconds."""
    values = recorded[number * len(recorded) // lines]
    total = int(recorded[-1]["total_steps"])
    step = max(1, round(total * (number + 1) / lines))
    epochs = int(values["epochs"])
    return {
        **values,
        "epoch": max(1, round(epochs * step / total)),
        "step": step,
        "eta_seconds": round(duration * (1 - (number + 1) / lines), 1),
        "seconds_per_step": round(duration / total, 4),
    }


def say(text: str) -> None:
    """Print a line without buffering, so that the log shows it at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
