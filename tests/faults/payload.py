"""What the jobs of a campaign run: a shell script that keeps its own records, in a directory the product never touches.

`<job>.<attempt>.<rank>.start` is made with O_EXCL (noclobber), so that a second execution of one attempt is seen: it
leaves a `.twice` record and fails. `.end` holds the exit code that the script is about to return.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

LINES = 20
SCRIPT = """set -C
tag="$RECORDS/$TRAINYARD_JOB_ID.$TRAINYARD_ATTEMPT.$TRAINYARD_RANK"
echo $$ > "$tag.start" || { echo $$ > "$tag.twice.$$"; exit 99; }
n=0
while [ $n -lt %(lines)d ]; do n=$((n + 1)); echo "line $n"; sleep 0.03; done
%(after)s
echo $code > "$tag.end"
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
    """One start or end, as the payload itself wrote it."""

    job_id: str
    attempt: int
    rank: int
    what: str


def command(life: str) -> list[str]:
    """The command of a job with one of the lives in AFTER."""
    return ["/bin/sh", "-c", SCRIPT % {"lines": LINES, "after": AFTER[life]}]


def printed_lines() -> list[str]:
    """Everything that one attempt prints."""
    return [f"line {number}" for number in range(1, LINES + 1)]


def read_records(directory: Path) -> Counter[Record]:
    """All records that the payloads left."""
    found: Counter[Record] = Counter()
    for path in directory.iterdir():
        job_id, attempt, rank, what = path.name.split(".")[:4]
        found[Record(job_id, int(attempt), int(rank), what)] += 1
    return found
