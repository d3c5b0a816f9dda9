"""`yard demo four-teams`: four teams share sixteen GPUs, slowly enough to watch on the dashboard.

It uses only the public API: creates four projects with quotas, submits and deletes jobs in twenty steps, and
after each compares the allocation with the published run. It marks its projects in their description, and
changes or deletes no others.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from typing import Any, NamedTuple

from controlplane.cli import formats
from controlplane.cli.errors import CONFLICT, DONE, FAILED, TIMED_OUT, ApiError, CliError
from controlplane.cli.lookup import job_id, project_path
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.scenario import QUOTAS, Expected, Step, expectations, steps
from controlplane.cli.session import Session

MARK = "Made by `yard demo four-teams`, which deletes it again"
# Training resumes where it was preempted. Interactive work is a shell that reports a low GPU utilisation.
TRAINING = {"image": "replay", "env": {"DURATION_SECONDS": "3600"}}
INTERACTIVE_UTILIZATION = 0.35
UNFINISHED = "queued,starting,running,scaling,suspended,stopping"
_POLL_SECONDS = 0.2
_CLEAR_SECONDS = 60.0


class ScenarioState(NamedTuple):
    """The state of the four projects. `allocated`: GPUs by project, in the order of QUOTAS; `running`, `waiting`,
    `moving`: names of jobs, the last in any other state; `physical_gpus`: devices in use."""

    allocated: tuple[float, ...]
    running: frozenset[str]
    waiting: frozenset[str]
    moving: frozenset[str]
    physical_gpus: int

    def is_as(self, expected: Expected) -> bool:
        """Return whether allocation, devices in use and the number of running jobs are as published."""
        return (
            self.allocated in expected.allocated
            and self.physical_gpus == expected.physical_gpus
            and len(self.running) == expected.running
        )


def demo_four_teams_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard demo four-teams",
        "yard demo four-teams --pause 8",
        "yard demo four-teams --reset",
        "yard demo four-teams --clear",
    ]
    parser.epilog = f"Its projects are {', '.join(QUOTAS)}; it changes and deletes none that it did not make."
    parser.add_argument(
        "--pause", type=float, default=3.0, metavar="SECONDS", help="between two steps (default 3)"
    )
    parser.add_argument(
        "--settle", type=float, default=30.0, metavar="SECONDS", help="how long a step may take (default 30)"
    )
    add_flag(parser, "--reset", about="first delete the projects of an earlier run")
    add_flag(parser, "--clear", about="delete the projects of an earlier run, and end")
    add_flag(
        parser,
        "--anyway",
        about="run although other jobs hold GPUs; the results then differ from the published ones",
    )


def demo_four_teams(args: Namespace, session: Session) -> int:
    """Run all steps of the four-team scenario (controlplane/cli/scenario.py). --reset first deletes the projects of
    an earlier run, --clear deletes them only. Exit code 1 if the allocation after a step is not the published one."""
    made = _made_before(session)
    if args.reset or args.clear:
        _clear(session, made)
        made = []
    if args.clear:
        return DONE
    _prepare(session, made, is_among_others=args.anyway)
    expected = expectations()
    before, results = _state_now(session), []
    for step in steps():
        session.output.line(_announcement(step))
        session.output.flush()
        _act(session, step)
        after = _settled(session, expected[step.number], args.settle)
        is_as_published = after.is_as(expected[step.number])
        session.output.line(_outcome(before, after, expected[step.number]))
        session.output.flush()
        results.append(is_as_published)
        before = after
        session.pause(args.pause)
    return _conclude(session, results)


def _made_before(session: Session) -> list[str]:
    """Return the names of the demo's projects that exist. Raise CliError if one of them was not created by this
    demo."""
    made = []
    for name in QUOTAS:
        try:
            project = session.get(project_path(name))
        except ApiError as error:
            if error.status != 404:
                raise
            continue
        if project.get("description") != MARK:
            raise CliError(f"project {name} was not made by this demo, which leaves it alone", CONFLICT)
        made.append(name)
    return made


def _prepare(session: Session, made: list[str], *, is_among_others: bool) -> None:
    """Create the four projects, or reset the quotas of those in `made`. Raise CliError while they have jobs, and
    while other jobs hold GPUs unless `is_among_others`, because the results would differ."""
    left = [row["name"] for row in _jobs(session)]
    if left:
        hint = "delete them first: yard demo four-teams --reset"
        raise CliError(f"the demo's projects still have jobs: {', '.join(left[:5])}", CONFLICT, hint)
    _check_cluster(session)
    busy = _devices_in_use(session)
    if busy and not is_among_others:
        hint = "wait until they have ended, stop them, or run anyway: yard demo four-teams --anyway"
        raise CliError(f"other jobs hold {busy} of the GPUs that the demo uses", CONFLICT, hint)
    for name, quota in QUOTAS.items():
        if name in made:
            session.client.patch(project_path(name), {"gpu_quota": quota})
        else:
            session.client.post("projects", {"name": name, "gpu_quota": quota, "description": MARK})
    quotas = ", ".join(f"{name} {quota}" for name, quota in QUOTAS.items())
    session.output.line(f"Quotas: {quotas}. Watch it at {session.config.url}/")


def _check_cluster(session: Session) -> None:
    total = sum(node.get("gpus") or 0 for node in session.client.pages("nodes", {}, 1000)["results"])
    if total != sum(QUOTAS.values()):
        session.output.say(f"note: the scenario is about 16 GPUs on two nodes; this cluster has {total}")


def _act(session: Session, step: Step) -> None:
    for name in step.jobs:
        if step.action == "delete":
            scoped = Session(session.config, session.output, step.project)
            session.client.delete(f"jobs/{job_id(scoped, name)}")
        else:
            session.client.post(f"{project_path(step.project)}/jobs", _spec(step, name))


def _spec(step: Step, name: str) -> dict[str, Any]:
    gpus = int(step.gpus) if step.gpus.is_integer() else step.gpus
    work = TRAINING if step.kind == "train" else {"image": "ubuntu", "command": ["sh", "-c", _shell_line()]}
    return {"name": name, "kind": step.kind, "gpus": gpus, **work}


def _shell_line() -> str:
    """Return a shell command that reports a low GPU utilisation every two seconds for an hour; simulated GPUs show
    what jobs report."""
    report = json.dumps({"trainyard": 1, "gpu_utilization": INTERACTIVE_UTILIZATION})
    return f"i=0; while [ $i -lt 1800 ]; do i=$((i+1)); echo '{report}'; sleep 2; done"


def _settled(session: Session, expected: Expected, seconds: float) -> ScenarioState:
    """Return the state of the projects when it is as expected and no job is changing its state, at the latest after
    `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        standing = _state_now(session)
        is_quiet = not standing.moving and standing.is_as(expected)
        if is_quiet or time.monotonic() >= deadline:
            return standing
        session.pause(_POLL_SECONDS)


def _state_now(session: Session) -> ScenarioState:
    rows = _jobs(session)
    allocated = dict.fromkeys(QUOTAS, 0.0)
    states: dict[str, set[str]] = {"running": set(), "queued": set()}
    for row in rows:
        status = row["status"]
        allocated[row["project"]] += status.get("allocated_gpus") or 0
        states.setdefault(status["state"], set()).add(row["name"])
    running, waiting = frozenset(states.pop("running")), frozenset(states.pop("queued"))
    moving = frozenset(name for names in states.values() for name in names)
    rounded = tuple(round(allocated[name], 3) for name in QUOTAS)
    return ScenarioState(rounded, running, waiting, moving, _devices_in_use(session))


def _jobs(session: Session) -> list[dict[str, Any]]:
    """Return the unfinished jobs of the four projects."""
    rows = session.client.pages("jobs", {"state": UNFINISHED}, 1000)["results"]
    return [row for row in rows if row["project"] in QUOTAS]


def _devices_in_use(session: Session) -> int:
    nodes = session.client.pages("nodes", {}, 1000)["results"]
    return sum(1 for node in nodes for device in node.get("devices") or [] if device.get("allocated"))


def _announcement(step: Step) -> str:
    names = ", ".join(step.jobs)
    if step.action == "delete":
        return f"{step.number:>2}/20  {step.project} deletes {names}"
    gpus = f"{formats.gpus(step.gpus)} {'GPU' if step.gpus <= 1 else 'GPUs'}"
    return f"{step.number:>2}/20  {step.project} submits {names}: {step.kind}, {gpus}"


def _outcome(before: ScenarioState, after: ScenarioState, expected: Expected) -> str:
    shares = "  ".join(
        f"{name} {formats.gpus(count)}/{QUOTAS[name]}"
        for name, count in zip(QUOTAS, after.allocated, strict=True)
    )
    lost, started = before.running & after.waiting, after.running - before.running
    parts = [
        f"{shares}  | {after.physical_gpus} of 16 GPUs, {len(after.running)} running",
        f"preempted: {_listed(lost)}" if lost else "",
        f"started: {_listed(started)}" if started else "",
        f"waiting: {_listed(after.waiting)}" if after.waiting else "",
        "as expected" if after.is_as(expected) else f"NOT as expected: {_published(expected)}",
    ]
    return "       " + "; ".join(part for part in parts if part)


def _published(expected: Expected) -> str:
    divisions = " or ".join("/".join(map(formats.gpus, division)) for division in expected.allocated)
    return f"{divisions}, {expected.physical_gpus} GPUs, {expected.running} running"


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _conclude(session: Session, results: list[bool]) -> int:
    session.output.line(f"{sum(results)} of {len(results)} steps ended as expected. The jobs keep running.")
    session.output.say("delete its projects with: yard demo four-teams --clear")
    return DONE if all(results) else FAILED


def _clear(session: Session, made: list[str]) -> None:
    """Delete the projects `made` with their jobs, and wait for the jobs to end. Raise CliError if some are still
    stopping after _CLEAR_SECONDS."""
    deadline = time.monotonic() + _CLEAR_SECONDS
    while rows := [row for row in _jobs(session) if row["project"] in made]:
        for row in rows:
            if row["status"]["state"] != "stopping":
                session.client.delete(f"jobs/{row['id']}")
        if time.monotonic() >= deadline:
            raise CliError("some jobs are still stopping; try again in a moment", TIMED_OUT)
        session.pause(_POLL_SECONDS)
    for name in made:
        session.client.delete(project_path(name))
    gone = f"deleted with their jobs: {', '.join(made)}" if made else "there was nothing to delete"
    session.output.line(gone)
