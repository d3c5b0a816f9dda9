"""Clusters, node pools and nodes."""

from dataclasses import replace
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from controlplane import fields
from controlplane.access import Forbidden, NotVisible, cluster_for, require_admin
from controlplane.actions.cluster_input import (
    credential_fields,
    credentials_for,
    engine_for_new,
    settings_for,
)
from controlplane.actions.clusters import check_cluster, detach_cluster, edit_cluster, register_cluster
from controlplane.actions.errors import Conflict
from controlplane.actions.nodes import create_pool, delete_pool, mark_pool
from controlplane.api import query
from controlplane.api.bodies import BodyField, label_field
from controlplane.api.json_schema import BOOLEAN, INTEGER, OBJECT, STRING, nullable, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Filter, Listing, fields_parameter, paged, trimmed
from controlplane.api.problems import bad_request
from controlplane.api.schemas import CLUSTER, NODE, NODE_POOL
from controlplane.engines.kinds import engine_kinds
from controlplane.fields import Refused
from controlplane.loop.observe import observe
from controlplane.models import Cluster, Node, NodePool
from controlplane.queries.nodes import cluster_rows, node_rows
from controlplane.scheduling.anonymise import anonymous
from controlplane.scheduling.view import view_to_dict
from controlplane.telemetry.usage import MOST_HOURS

# The most unfinished jobs for which the view is returned; with more it would exceed 20 MB.
MOST_VIEWED_JOBS = 20_000
ENGINES = tuple(engine_kinds())
KNOWN_SCHEDULERS = sorted({one.name for kind in engine_kinds().values() for one in kind.schedulers})


def _object(value: Any) -> dict[str, Any]:
    """Return a cluster's settings if they are a JSON object, else raise Refused. Their content is validated by the
    engine."""
    if not isinstance(value, dict):
        raise Refused("not_an_object", "Settings are an object.")
    return value


_name = label_field(50, is_required=True)
_half_life = BodyField(
    fields.optional(fields.whole(0, MOST_HOURS)), nullable({**INTEGER, "minimum": 0, "maximum": MOST_HOURS})
)
CLUSTER_CHANGES = {
    "usage_half_life_hours": _half_life,
    "scheduler": BodyField(fields.text(16), {**STRING, "enum": KNOWN_SCHEDULERS}),
    "settings": BodyField(_object, OBJECT),
    **{name: BodyField(one.read, dict(one.schema)) for name, one in credential_fields().items()},
}
NEW_CLUSTER = {
    "name": _name,
    "engine": BodyField(fields.text(16), {**STRING, "enum": list(ENGINES)}),
    **CLUSTER_CHANGES,
}
_spot = BodyField(
    fields.switch, {**BOOLEAN, "description": "The provider of its nodes may take them away at any time."}
)
NEW_POOL = {"name": _name, "cluster": BodyField(fields.text(50), STRING), "is_spot": _spot}
POOL_CHANGES = {
    "is_spot": replace(_spot, is_required=True),
    "cluster": BodyField(
        fields.text(50), {**STRING, "description": "Needed where several clusters have a pool of this name."}
    ),
}


CLUSTERS = Listing(
    CLUSTER,
    {"name": ("name",), "created_at": ("created_at", "id")},
    "name",
    {
        "engine": Filter("engine__in", query.choices(ENGINES, "With these engines.")),
        "state": Filter("state__in", query.choices(Cluster.STATES, "In these states.")),
    },
)
POOLS = Listing(
    NODE_POOL,
    {"name": ("name", "id")},
    "name",
    {"cluster": Filter("cluster__name__in", query.texts("Of these clusters."))},
)
NODES = Listing(
    NODE,
    {"name": ("name",)},
    "name",
    {
        "cluster": Filter("cluster__name__in", query.texts("Of these clusters.")),
        "node_pool": Filter("pool__name__in", query.texts("In these pools.")),
        "is_ready": Filter("is_ready", query.switch("Ready or not.")),
        "is_cordoned": Filter("is_cordoned", query.switch("Cordoned or not.")),
    },
)


class Clusters(ApiView):
    """The clusters that are not detached. Every user may read them; admins may register one."""

    @CLUSTERS.operation("List clusters", "Cluster")
    def get(self, call: Call) -> Answer:
        shape = partial(cluster_rows, is_admin=call.actor.is_admin)
        return paged(call, _attached(), CLUSTERS, fetch=list, shape=shape)

    @operation(
        "Register a cluster; its nodes are discovered", answer=ref("Cluster"), status=201, body=NEW_CLUSTER
    )
    def post(self, call: Call) -> Answer:
        require_admin(call.actor)
        body, engine = call.body, engine_for_new(call.body)
        cluster = register_cluster(
            body["name"],
            engine,
            settings_for(engine, body.get("settings")),
            actor=call.actor,
            scheduler=body.get("scheduler", "planner"),
            usage_half_life_hours=body.get("usage_half_life_hours"),
            credentials=credentials_for(engine, body, is_new=True),
        )
        return _answer(call, cluster, 201)


class ClusterDetail(ApiView):
    """One cluster that is not detached, by name. Every user may read it; admins may edit and detach it."""

    @operation("A cluster", answer=ref("Cluster"), query={"fields": fields_parameter(CLUSTER)})
    def get(self, call: Call, name: str) -> Answer:
        return _answer(call, cluster_for(name))

    @operation("Edit a cluster", answer=ref("Cluster"), body=CLUSTER_CHANGES)
    def patch(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        cluster = call.require_match(cluster_for(name), _cluster_revision)
        changes: dict[str, Any] = {
            name: call.body[name]
            for name in ("scheduler", "settings", "usage_half_life_hours")
            if name in call.body
        }
        if "settings" in changes:
            changes["settings"] = settings_for(cluster.engine, changes["settings"])
        credentials = credentials_for(cluster.engine, call.body, is_new=False)
        edit_cluster(cluster, changes, actor=call.actor, credentials=credentials)
        return _answer(call, cluster)

    @operation("Detach a cluster without projects", answer={}, status=204)
    def delete(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        detach_cluster(call.require_match(cluster_for(name), _cluster_revision), actor=call.actor)
        return Answer(None, 204)


class ClusterCheck(ApiView):
    """Queue a check of a cluster. The answer is the cluster before the check ends. For admins."""

    @operation("Check the cluster again", answer=ref("Cluster"))
    def post(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        return _answer(call, check_cluster(cluster_for(name), actor=call.actor))


class NodePools(ApiView):
    """Node pools: named groups of nodes. Every user may read them; admins may create one, without `cluster` in the
    body on the first cluster."""

    @POOLS.operation("List node pools", "NodePool")
    def get(self, call: Call) -> Answer:
        rows = NodePool.objects.filter(cluster__detached_at=None).select_related("cluster")
        return paged(call, rows.prefetch_related("nodes"), POOLS, fetch=list, shape=_shape_pools)

    @operation("Create a node pool", answer=ref("NodePool"), status=201, body=NEW_POOL)
    def post(self, call: Call) -> Answer:
        require_admin(call.actor)
        cluster = _attached().first() if "cluster" not in call.body else cluster_for(call.body["cluster"])
        if cluster is None:
            raise NotVisible("There is no cluster; register one first.")
        is_spot = call.body.get("is_spot", False)
        pool = create_pool(cluster, call.body["name"], actor=call.actor, is_spot=is_spot)
        return Answer(_shape_pools([pool])[0], 201)


class NodePoolDetail(ApiView):
    """Mark a node pool as spot, or not. For admins. 400 without `cluster` if several clusters have a pool of this
    name."""

    @operation("Mark a node pool as spot, or not", answer=ref("NodePool"), body=POOL_CHANGES)
    def patch(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        pool = _pool_for(name, call.body.get("cluster"))
        return Answer(_shape_pools([mark_pool(pool, call.body["is_spot"], actor=call.actor)])[0])

    @operation(
        "Delete a node pool that no node is in, and that no project or cache location names",
        answer={},
        status=204,
        query={"cluster": query.text("Its cluster, where several have a pool of this name.")},
    )
    def delete(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        delete_pool(_pool_for(name, call.query["cluster"]), actor=call.actor)
        return Answer(None, 204)


class Nodes(ApiView):
    """Nodes with their GPUs. Every user may read them."""

    @NODES.operation("List nodes with their devices", "Node")
    def get(self, call: Call) -> Answer:
        rows = Node.objects.filter(cluster__detached_at=None).select_related("cluster", "pool")
        return paged(call, rows, NODES, fetch=list, shape=node_rows)


def _answer(call: Call, cluster: Cluster, status: int = 200) -> Answer:
    shown = cluster_rows([cluster], is_admin=call.actor.is_admin)[0]
    return Answer(trimmed(call, shown), status, revision=_cluster_revision(cluster))


def _attached() -> QuerySet[Cluster]:
    return Cluster.objects.filter(detached_at=None)


class ClusterSchedulerView(ApiView):
    """The scheduler's input, which can be replayed on another machine. For admins. 409 with more than 20,000
    unfinished jobs."""

    @operation(
        "The scheduler's current view, for `python -m controlplane.scheduling.replay`",
        answer=OBJECT | {"description": "The input of one decision as plain data; its form may change."},
        query={"anonymous": query.switch("With numbers in place of all names.", False)},
    )
    def get(self, call: Call, name: str) -> Answer:
        if not call.actor.is_admin:
            raise Forbidden("Only an admin may do this.")
        view = observe(cluster_for(name), timezone.now()).view
        if len(view.jobs) > MOST_VIEWED_JOBS:
            detail = f"A view of more than {MOST_VIEWED_JOBS:,} unfinished jobs is not served."
            raise Conflict("too_many_jobs", detail)
        return Answer(view_to_dict(anonymous(view) if call.query["anonymous"] else view))


def _cluster_revision(cluster: Cluster) -> Any:
    return [cluster.name, cluster.engine, cluster.scheduler, cluster.settings, cluster.usage_half_life_hours]


def _pool_for(name: str, cluster: str | None) -> NodePool:
    pools = NodePool.objects.filter(cluster__detached_at=None, name=name).select_related("cluster")
    found = [pool for pool in pools if cluster in (None, pool.cluster.name)]
    if not found:
        raise NotVisible(f"There is no node pool named {name!r}.")
    if len(found) > 1:
        names = ", ".join(sorted(pool.cluster.name for pool in found))
        raise bad_request("/cluster", "required", f"Several clusters have a pool {name}: {names}. Name one.")
    return found[0]


def _shape_pools(pools: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": pool.name,
            "cluster": pool.cluster.name,
            "is_spot": pool.is_spot,
            "nodes": sorted(node.name for node in pool.nodes.all()),
        }
        for pool in pools
    ]
