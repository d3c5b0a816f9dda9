"""Runs the four-team scenario through REST: performs a step and observes its effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.scenarios.four_teams.script import (
    TEAMS,
    Expected,
    Observed,
    Step,
    assert_step,
    expectations,
    steps,
)
from tests.servers import ControlPlane
from tests.waiting import wait_until


def play(
    plane: ControlPlane, timeout: float = 20, is_settled: Callable[[Step], bool] = lambda step: True
) -> None:
    """Perform all twenty steps; after each, assert its expected effect within `timeout` seconds. Fourteen pods
    run at the end.

    `is_settled`: whether the cluster's own scheduler has handled the step, if it has one."""
    for team, quota in TEAMS.items():
        status, answer = plane.call("POST", "/api/v1/projects", {"name": team, "gpu_quota": quota})
        assert status == 201, answer
    expected, before = expectations(), frozenset[str]()
    running: frozenset[str] = frozenset()
    for step in steps():
        perform(plane, step)
        ended = frozenset(step.jobs) if step.action == "delete" else frozenset[str]()
        mismatches = ["nothing was seen yet"]
        matching = partial(_matching, plane, expected[step.seq], running, ended, before, mismatches)
        try:
            wait_until(partial(is_settled, step), timeout=timeout, what=f"an answer to step {step.seq}")
            observed = wait_until(matching, timeout=timeout, what=f"step {step.seq}")
        except AssertionError as error:
            raise AssertionError(mismatches[-1]) from error
        before |= observed.preempted
        running = frozenset(job["name"] for job in jobs(plane, "running"))


def jobs(plane: ControlPlane, states: str) -> list[dict[str, Any]]:
    status, page = plane.call("GET", f"/api/v1/jobs?state={states}&limit=100")
    assert status == 200, page
    found: list[dict[str, Any]] = page["results"]
    return found


def stop_all(plane: ControlPlane) -> None:
    """Stop all jobs and wait for their end; pods of the local engine would outlive the control plane."""
    for job in jobs(plane, "queued,starting,running"):
        plane.call("POST", f"/api/v1/jobs/{job['id']}/stop")
    wait_until(lambda: not jobs(plane, "queued,starting,running,stopping"), 30, "the end of all jobs")


def perform(plane: ControlPlane, step: Step) -> None:
    for name in step.jobs:
        if step.action == "delete":
            (job,) = [job for job in jobs(plane, "queued,starting,running") if job["name"] == name]
            status, answer = plane.call("DELETE", f"/api/v1/jobs/{job['id']}")
            assert status in (200, 202, 204), answer
            continue
        body = {"name": name, "kind": step.kind, "gpus": step.gpus, "command": ["sleep", "infinity"]}
        status, answer = plane.call("POST", f"/api/v1/projects/{step.project}/jobs", body)
        assert status == 201, answer


def observe(plane: ControlPlane, running_before: frozenset[str], ended: frozenset[str]) -> Observed:
    """Return what REST shows: allocation by project from the jobs' pods, and jobs preempted since the step
    before. `ended`: jobs that the step deleted."""
    allocated = dict.fromkeys(TEAMS, 0.0)
    devices, running = set(), set()
    active = jobs(plane, "starting,running,stopping")
    for job in active:
        for pod in job["status"]["pods"]:
            for device in pod["devices"]:
                devices.add((pod["node"], device["index"]))
                allocated[job["project"]] += device["share"]
        if job["status"]["state"] == "running":
            running.add(job["name"])
    waiting = frozenset(job["name"] for job in jobs(plane, "queued"))
    return Observed(
        allocated={team: round(gpus, 3) for team, gpus in allocated.items()},
        physical_gpus_used=len(devices),
        running=len(running),
        preempted=(running_before - running - ended) & waiting,
        waiting=waiting,
    )


def _matching(
    plane: ControlPlane,
    wanted: Expected,
    running: frozenset[str],
    ended: frozenset[str],
    before: frozenset[str],
    mismatches: list[str],
) -> Observed | None:
    """Return the observation if it is the expected one, else None with the difference appended to `mismatches`: a
    reclaim takes several cycles."""
    observed = observe(plane, running, ended)
    try:
        assert_step(wanted, observed, before)
    except AssertionError as mismatch:
        mismatches.append(f"{mismatch}")
        return None
    return observed
