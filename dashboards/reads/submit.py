"""Data for the submit form: projects to choose from, and the expected result of a submission."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Count, F, Sum
from django.utils.translation import gettext as _

from controlplane.access import Actor, visible_project_names, visible_projects
from controlplane.models import Device, Project, Role
from controlplane.simulation.client import SimulationFailed
from dashboards import formats
from dashboards.reads.projects import pool_names
from datasets.queries.job_data import datasets_to_copy
from jobs.models import Job
from jobs.planning import plan_job

__all__ = ["data_notice", "expectation", "plan", "pool_names", "projects_to_submit_to"]


def projects_to_submit_to(actor: Actor) -> list[str]:
    """Return the names of the projects in which the actor may submit jobs, sorted."""
    projects = visible_projects(actor)
    if not actor.is_admin:
        projects = projects.filter(
            memberships__user=actor.user, memberships__role__in=(Role.MEMBER, Role.OWNER)
        )
    return list(projects.order_by("name").values_list("name", flat=True))


def plan(project: Project, body: Mapping[str, Any], actor: Actor) -> dict[str, Any]:
    """Return what the scheduler would do with a submission: {"plan": as `plan_job` returns it, "nodes": (name, number
    of pods) of each node where it would start}; or {"problem": a sentence} if that cannot be computed. Takes seconds.
    Raises what `plan_job` raises for the submission."""
    try:
        found = plan_job(project, body, actor=actor, sees=visible_project_names(actor))
    except SimulationFailed:
        return {"problem": _("The plan could not be computed; try again.")}
    if found["starts_now"] is None:
        return {
            "problem": _("Trainyard does not schedule this cluster, or it has too many jobs to plan ahead.")
        }
    nodes: dict[str, int] = {}
    for pod in found["placement"]:
        nodes[pod["node"]] = nodes.get(pod["node"], 0) + 1
    return {"plan": found, "nodes": sorted(nodes.items())}


def expectation(project: Project, spec: Mapping[str, Any]) -> str:
    """Return one sentence about the expected wait of a submission. It only compares numbers; the scheduler
    decides."""
    asked = _asked_milli(project, spec)
    if not asked:
        return _("It asks for no GPU and starts as soon as a node has the CPUs and memory.")
    free, held = _free_milli(project), _held_milli(project)
    after = {
        "after": formats.number((held + asked) / 1000),
        "quota": formats.number(project.gpu_quota_milli / 1000),
    }
    is_in_quota = held + asked <= project.gpu_quota_milli
    if is_in_quota and asked <= free:
        return (
            _("It should start at once: the project would hold %(after)s of its quota of %(quota)s.") % after
        )
    if is_in_quota:
        return (
            _("It is inside the quota of %(quota)s: GPUs that others borrowed are reclaimed for it.") % after
        )
    if not spec["preemptible"]:
        return _("It would wait: work that cannot be preempted stays inside the quota of %(quota)s.") % after
    if asked <= free:
        return (
            _(
                "It should start at once on idle GPUs above the quota of %(quota)s; their owners may reclaim them."
            )
            % after
        )
    return _("It would wait: free GPUs: %(free)s; the quota of %(quota)s is used.") % {
        **after,
        "free": formats.number(free / 1000),
    }


def data_notice(project: Project, spec: Mapping[str, Any]) -> str:
    """Return a sentence about the datasets that are copied before a submission can start, "" if there are none."""
    names = datasets_to_copy(project, spec["datasets"])
    return (
        _("Copied to the cluster before it starts: %(names)s.") % {"names": ", ".join(names)} if names else ""
    )


def _asked_milli(project: Project, spec: Mapping[str, Any]) -> int:
    if spec["gpu_memory_mib"]:
        largest = (
            Device.objects.filter(node__cluster=project.cluster)
            .order_by("-memory_mib")
            .values_list("memory_mib", flat=True)
        )
        return int(1000 * spec["gpu_memory_mib"] / (largest.first() or spec["gpu_memory_mib"]))
    # An elastic job can start with fewer workers, so its minimum decides.
    return int(spec["gpus"]) * int(spec["min_workers"] or spec["workers"])


def _free_milli(project: Project) -> int:
    devices = Device.objects.filter(
        node__cluster=project.cluster, node__is_ready=True, node__is_cordoned=False, node__is_closed=False
    )
    sums = devices.aggregate(count=Count("pk"), held=Sum("allocated_milli", default=0))
    return int(sums["count"] * 1000 - sums["held"])


def _held_milli(project: Project) -> int:
    jobs = Job.objects.filter(project=project).unfinished()
    return int(jobs.aggregate(held=Sum(F("allocated_milli"), default=0))["held"])
