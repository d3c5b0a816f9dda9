"""The program of a campaign's jobs: a shell script that writes records into a directory that the product never
touches.

`<job>.<attempt>.<rank>.start` is created with O_EXCL (noclobber): a second execution of an attempt fails and
leaves a `.twice` record. `.end` holds the exit code with which the script then ends. A rank that fails waits for the
`.end` of all ranks first, because the first failure ends the others, which would then leave none."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LINES = 20
SCRIPT = """set -C
attempt="$RECORDS/$TRAINYARD_JOB_ID.$TRAINYARD_ATTEMPT"
tag="$attempt.$TRAINYARD_RANK"
echo $$ > "$tag.start" || { echo $$ > "$tag.twice.$$"; exit 99; }
n=0
while [ $n -lt %(lines)d ]; do n=$((n + 1)); echo "line $n"; sleep 0.03; done
%(after)s
echo $code > "$tag.end"
[ $code = 0 ] || while [ $(ls "$attempt".*.end | wc -l) -lt $TRAINYARD_WORLD_SIZE ]; do sleep 0.02; done
exit $code
"""
AFTER = {
    "succeeds": "code=0",
    "fails": "code=7",
    "succeeds at the second attempt": "code=9; [ $TRAINYARD_ATTEMPT = 1 ] || code=0",
    "runs until it is stopped": "setsid sleep 1000 & while :; do sleep 0.2; done",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the script; `what` is `start`, `twice` or `end`."""

    job_id: str
    attempt: int
    rank: int
    what: str


def command(life: str) -> list[str]:
    """Return the command of a job that ends as `life` (a key of AFTER) says."""
    return ["/bin/sh", "-c", SCRIPT % {"lines": LINES, "after": AFTER[life]}]


def printed_lines() -> list[str]:
    """Return all lines that one attempt prints."""
    return [f"line {number}" for number in range(1, LINES + 1)]


def read_records(directory: Path) -> Counter[Record]:
    """Return all records in the directory, each with its number."""
    found: Counter[Record] = Counter()
    for path in directory.iterdir():
        job_id, attempt, rank, what = path.name.split(".")[:4]
        found[Record(job_id, int(attempt), int(rank), what)] += 1
    return found
