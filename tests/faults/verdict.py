"""Compares, after a campaign, the acknowledged requests, the jobs' records, REST, the database and the process
table. Functions `faults_of_...` yield a sentence for each fault."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil

from tests.faults import payload
from tests.faults.payload import Record
from tests.faults.users import Submitted, User

FINAL = {"succeeded", "failed", "stopped", "timed_out"}


def is_at_rest(users: list[User]) -> bool:
    """Return whether each user's jobs are in a final state and the deleted ones are gone."""
    return all(len(unfinished(user)) == 0 for user in users)


def unfinished(user: User) -> list[str]:
    """Return the names of jobs that are not in a final state, or are deleted and not gone."""
    status, page = user.call("GET", f"{user.jobs_path}?limit=500")
    assert status == 200, page
    deleted = {job.id for job in user.submitted if job.ending == "deleted"}
    return [
        one["name"] for one in page["results"] if one["status"]["state"] not in FINAL or one["id"] in deleted
    ]


def faults_of_jobs(user: User, records: Counter[Record]) -> Iterator[str]:
    """Yield jobs that were lost, created twice or started again, that ended in another state than expected, or
    whose log differs."""
    _, page = user.call("GET", f"{user.jobs_path}?limit=500")
    shown = {one["id"]: one for one in page["results"]}
    kept = {job.id for job in user.submitted if job.ending != "deleted"}
    if len({job.id for job in user.submitted}) < len(user.submitted):
        yield "one id was given to two submissions"
    for stray in shown.keys() - kept:
        yield f"{shown[stray]['name']} exists and was never acknowledged"
    for job in user.submitted:
        if job.ending == "deleted":
            continue
        if job.id not in shown:
            yield f"{job.body['name']} was acknowledged and is lost"
            continue
        yield from _faults_of_one(user, job, shown[job.id]["status"], records)


def _faults_of_one(
    user: User, job: Submitted, status: dict[str, Any], records: Counter[Record]
) -> Iterator[str]:
    name = f"{user.name}'s {job.body['name']} ({job.life})"
    if status["state"] != job.ending:
        yield f"{name} is {status['state']} ({status['reason']}), not {job.ending}"
    attempts = 2 if "second" in job.life else 1
    if status["attempt"] != attempts and not (job.ending == "stopped" and status["attempt"] == 0):
        yield f"{name} had {status['attempt']} attempts, not {attempts}"
    for attempt in range(1, status["attempt"] + 1):
        for rank in range(job.body.get("workers", 1)):
            if job.ending != "stopped":
                for what in ("start", "end"):
                    if records[Record(job.id, attempt, rank, what)] != 1:
                        yield f"{name} left no {what} record of attempt {attempt}, rank {rank}"
            yield from _faults_of_log(user, job, name, attempt, rank)


def _faults_of_log(user: User, job: Submitted, name: str, attempt: int, rank: int) -> Iterator[str]:
    status, page = user.call("GET", f"/api/v1/jobs/{job.id}/logs?attempt={attempt}&rank={rank}&limit=500")
    if status == 404 and job.ending == "stopped":
        return  # stopped before this rank had printed anything
    assert status == 200, page
    lines, expected = [line["text"] for line in page["lines"]], payload.printed_lines()
    if job.ending == "stopped":
        expected = expected[: len(lines)]
    if lines != expected or page["gaps"] or not page["complete"]:
        yield f"{name}: the log of {attempt}/{rank} has {len(lines)} lines, gaps {page['gaps']}: {lines[-3:]}"


def faults_of_records(records: Counter[Record]) -> Iterator[str]:
    """Yield attempts that ran twice."""
    for record in records:
        if record.what == "twice":
            yield f"attempt {record.attempt} of {record.job_id}, rank {record.rank}, ran twice"


def faults_of_rows(database: Path) -> Iterator[str]:
    """Yield what a database at rest must not have: allocated GPUs, unreleased rows, and gaps in the events'
    numbers."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for table, column in (("controlplane_device", "allocated_milli"), ("jobs_job", "allocated_milli")):
            held = connection.execute(f"SELECT SUM({column}) FROM {table}").fetchone()[0]
            if held:
                yield f"{table} holds {held} milli-GPUs at rest"
        for table in ("jobs_allocation", "jobs_pod"):
            left = connection.execute(f"SELECT COUNT(*) FROM {table} WHERE released_at IS NULL").fetchone()[0]
            if left:
                yield f"{left} rows of {table} are not released at rest"
        count, first, last = connection.execute(
            "SELECT COUNT(*), MIN(seq), MAX(seq) FROM controlplane_event"
        ).fetchone()
        if (first, last) != (1, count):
            yield f"{count} events are numbered {first} to {last}"


def faults_of_keys(user: User) -> Iterator[str]:
    """Yield idempotency keys that give another job when their request is repeated."""
    for job in user.submitted:
        _, answer = user.insist("POST", user.jobs_path, job.body, job.key)
        if answer["id"] != job.id:
            yield f"key {job.key} gave {job.id} first and {answer['id']} now"


def processes_left(records: Path) -> list[psutil.Process]:
    """Return the processes of payloads and their supervisors that still exist. `records`: the directory of the
    records."""
    left = []
    for process in psutil.process_iter():
        try:
            of_a_payload = process.environ().get("RECORDS") == str(records)
            if of_a_payload or str(records.parent / "state" / "pods") in " ".join(process.cmdline()):
                left.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return left


def sweep(records: Path) -> None:
    """Kill the processes that a failed campaign left: pods outlive their control plane."""
    for process in processes_left(records):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
