"""Replace the names in a view with numbers, so that the view can be attached to a bug report.

The numbers sort as the names did. So ties between equal places are broken alike, and the anonymous view gets the same
plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controlplane.scheduling.view import ClusterView, Extras, JobView, PodPlacement, ProjectView


def anonymous(view: ClusterView) -> ClusterView:
    """Return the view with all names and ids replaced by numbers, and without what names datasets and volumes."""
    nodes = _numbered("node", (node.name for node in view.nodes))
    projects = _numbered("project", (project.name for project in view.projects))
    departments = _numbered("department", (one.name for one in view.departments))
    pools = _numbered("pool", _pools(view))
    jobs = _numbered("job", _jobs(view))
    extras = _numbered("resource", _extras(view))
    places = _numbered("location", (node.location for node in view.nodes if node.location))
    return replace(
        view,
        name="cluster",
        nodes=tuple(
            replace(
                node,
                name=nodes[node.name],
                pool=_in(pools, node.pool),
                extras=_renamed(node.extras, extras),
                location=_in(places, node.location),
            )
            for node in view.nodes
        ),
        projects=tuple(_project(one, projects, departments, pools) for one in view.projects),
        departments=tuple(replace(one, name=departments[one.name]) for one in view.departments),
        jobs=tuple(_job(job, jobs, projects, nodes, pools, extras, places) for job in view.jobs),
    )


def _numbered(kind: str, names: Iterable[str]) -> Mapping[str, str]:
    known = sorted(set(names))
    width = len(str(len(known)))
    return {name: f"{kind}-{number:0{width}}" for number, name in enumerate(known, 1)}


def _pools(view: ClusterView) -> Iterable[str]:
    yield from (node.pool for node in view.nodes if node.pool)
    yield from (job.node_pool for job in view.jobs if job.node_pool)
    yield from (pool for project in view.projects for _, names in project.node_pools for pool in names)


def _jobs(view: ClusterView) -> Iterable[str]:
    yield from (job.id for job in view.jobs)
    yield from (job.was_preempted_by for job in view.jobs if job.was_preempted_by)


def _extras(view: ClusterView) -> Iterable[str]:
    yield from (name for node in view.nodes for name, _ in node.extras)
    yield from (name for job in view.jobs for name, _ in job.extras)


def _in(names: Mapping[str, str], name: str) -> str:
    """Return the replacement of a name; "" if the view does not define the name, such as that of a removed node."""
    return names.get(name, "")


def _project(
    one: ProjectView, projects: Mapping[str, str], departments: Mapping[str, str], pools: Mapping[str, str]
) -> ProjectView:
    return replace(
        one,
        name=projects[one.name],
        department=None if one.department is None else _in(departments, one.department),
        node_pools=tuple((kind, tuple(_in(pools, name) for name in names)) for kind, names in one.node_pools),
    )


def _job(
    job: JobView,
    jobs: Mapping[str, str],
    projects: Mapping[str, str],
    nodes: Mapping[str, str],
    pools: Mapping[str, str],
    extras: Mapping[str, str],
    places: Mapping[str, str],
) -> JobView:
    return replace(
        job,
        id=jobs[job.id],
        name="",
        project=_in(projects, job.project),
        node_pool=None if job.node_pool is None else _in(pools, job.node_pool),
        was_preempted_by=None if job.was_preempted_by is None else jobs[job.was_preempted_by],
        was_preempted_by_project=(
            None if job.was_preempted_by_project is None else _in(projects, job.was_preempted_by_project)
        ),
        placements=_moved(job.placements, nodes),
        promised=_moved(job.promised, nodes),
        avoid=tuple(_in(nodes, name) for name in job.avoid),
        extras=_renamed(job.extras, extras),
        locations=tuple(sorted(_in(places, name) for name in job.locations)),
        fillable=tuple(sorted(_in(places, name) for name in job.fillable)),
        copies=tuple(sorted((_in(places, name), seconds) for name, seconds in job.copies)),
        # These details name datasets and volumes; the scheduler reads only whether they are present.
        data_progress=(),
        volume_wait=(),
    )


def _renamed(extras: Extras, names: Mapping[str, str]) -> Extras:
    return tuple((names[name], amount) for name, amount in extras)


def _moved(placements: tuple[PodPlacement, ...], nodes: Mapping[str, str]) -> tuple[PodPlacement, ...]:
    return tuple(PodPlacement(pod.rank, _in(nodes, pod.node), pod.devices) for pod in placements)
