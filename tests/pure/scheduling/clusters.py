"""Random small clusters for properties: a history of submissions and deletions, decided as it goes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from controlplane.scheduling.cycle import decide
from controlplane.scheduling.view import ClusterView, DepartmentView, JobView
from tests.pure.scheduling.builders import apply, job, node, project, view

SIZES = st.sampled_from([0.25, 0.5, 1, 1, 1, 2, 2, 3, 0])
SHAPES = st.sampled_from([(2, 2), (2, 4), (1, 4), (3, 2), (2, 3)])
"""(nodes, GPUs each)"""


@st.composite
def projects(draw, has_departments=False):
    """Two to four projects, now and then in departments, with limits and priorities."""
    made = []
    for rank in range(draw(st.integers(2, 4))):
        made.append(
            project(
                f"p{rank}",
                draw(st.sampled_from([0, 1, 1, 2, 2.5, 3])),
                weight=draw(st.sampled_from([0, 1, 1, 2])),
                limit_milli_gpus=draw(st.sampled_from([None, None, None, 4000])),
                priority=draw(st.sampled_from([0, 0, 0, 1])),
                created_rank=rank,
                department=draw(st.sampled_from(["d0", "d1"])) if has_departments else None,
            )
        )
    return made


@st.composite
def requests(draw, project_names, name, is_maybe_elastic=False):
    """One queued job of any kind that the cluster could hold; now and then an elastic one, where that may be."""
    if is_maybe_elastic and draw(st.booleans()):
        return draw(elastic_requests(project_names, name))
    gpus = draw(SIZES)
    is_preemptible = draw(st.sampled_from([True, True, True, True, False]))
    return job(
        name,
        draw(st.sampled_from(project_names)),
        gpus,
        priority=draw(st.sampled_from([50, 50, 60])),
        is_preemptible=is_preemptible,
        kind="train" if is_preemptible else "interactive",
        pods=draw(st.sampled_from([1, 1, 1, 2, 3])) if gpus == 1 else 1,
        extras=draw(st.sampled_from([(), (), (), (("site/nic", 1),), (("site/nic", 2),)])),
    )


@st.composite
def elastic_requests(draw, project_names, name):
    """One queued elastic job whose fewest pods the cluster could hold."""
    fewest = draw(st.sampled_from([1, 1, 2, 3]))
    return job(
        name,
        draw(st.sampled_from(project_names)),
        draw(st.sampled_from([1, 1, 1, 0])),
        priority=draw(st.sampled_from([50, 50, 60])),
        is_preemptible=draw(st.sampled_from([True, True, True, False])),
        kind="elastic",
        pods=fewest + draw(st.integers(1, 6)),
        min_pods=fewest,
    )


@st.composite
def busy_views(draw, is_maybe_elastic=False) -> ClusterView:
    """A reachable cluster: the first project borrowed what was idle, some jobs ended, then everybody asks."""
    has_departments = draw(st.booleans())
    the_projects = draw(projects(has_departments))
    names = [item.name for item in the_projects]
    count, gpus = draw(SHAPES)
    nics = [draw(st.integers(0, 4)) for _ in range(count)]
    the_nodes = [node(f"n{index}", gpus, extras=(("site/nic", nics[index]),)) for index in range(count)]
    cluster = view(the_nodes, the_projects, departments=_departments() if has_departments else ())
    early = [
        draw(requests(names[:1] if rank % 2 else names, f"j{rank}", is_maybe_elastic))
        for rank in range(draw(st.integers(3, 9)))
    ]
    cluster = _submit(cluster, early)
    if draw(st.booleans()):
        gone = draw(st.integers(0, len(early) - 1))
        cluster = replace(cluster, jobs=tuple(item for item in cluster.jobs if item.id != f"j{gone}"))
    late = [
        draw(requests(names, f"k{100 + rank}", is_maybe_elastic)) for rank in range(draw(st.integers(1, 4)))
    ]
    return replace(cluster, jobs=(*cluster.jobs, *late))


def _submit(cluster: ClusterView, jobs: list[JobView]) -> ClusterView:
    for item in jobs:
        cluster = replace(cluster, jobs=(*cluster.jobs, item), now=cluster.now + 60)
        cluster = apply(cluster, decide(cluster))
    return cluster


def _departments():
    return (
        DepartmentView("d0", 3000, 3000, created_rank=0),
        DepartmentView("d1", 5000, 5000, limit_milli_gpus=9000, created_rank=1),
    )
