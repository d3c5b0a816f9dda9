"""REST views of one node, its pods and its verbs."""

from collections.abc import Iterable
from typing import Any

from controlplane import fields
from controlplane.access import node_for, require_admin, visible_project_ids
from controlplane.actions.nodes import cordon_node, set_node_pool, uncordon_node
from controlplane.api.bodies import BodyField
from controlplane.api.json_schema import INTEGER, STRING, nullable, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import fields_parameter, trimmed
from controlplane.api.problems import bad_request
from controlplane.api.schemas import NODE
from controlplane.models import Node, NodePool
from jobs.models import Job
from jobs.node_actions import LONGEST_NOTICE_SECONDS, confirm_dead, drain_node, interrupt_node, jobs_on
from jobs.node_pods import node_detail

NODE_CHANGES = {
    "node_pool": BodyField(fields.optional(fields.dns_label(50)), nullable(STRING), is_required=True)
}
INTERRUPTION = {
    "in_seconds": BodyField(
        fields.whole(1, LONGEST_NOTICE_SECONDS),
        {
            **INTEGER,
            "minimum": 1,
            "maximum": LONGEST_NOTICE_SECONDS,
            "description": "From now until the provider withdraws the node.",
        },
        is_required=True,
    )
}


class NodeDetail(ApiView):
    """A node, by name, with its devices and pods."""

    @operation(
        "A node with its devices and pods", answer=ref("Node"), query={"fields": fields_parameter(NODE)}
    )
    def get(self, call: Call, name: str) -> Answer:
        node = node_for(call.actor, name)
        shown = node_detail(node, visible_project_ids(call.actor))
        return Answer(trimmed(call, shown), revision=_node_revision(node))

    @operation("Move a node to a pool, or out of any", answer=ref("Node"), body=NODE_CHANGES)
    def patch(self, call: Call, name: str) -> Answer:
        node = call.require_match(_changeable(call, name), _node_revision)
        set_node_pool(node, _pool_named(node, call.body["node_pool"]), actor=call.actor)
        return Answer(node_detail(node, None), revision=_node_revision(node))


class NodeCordon(ApiView):
    """Stop scheduling pods on a node."""

    @operation("Give the node no new pods", answer=ref("Node"))
    def post(self, call: Call, name: str) -> Answer:
        return Answer(node_detail(cordon_node(_changeable(call, name), actor=call.actor), None))


class NodeUncordon(ApiView):
    """Allow new pods on a node again, and withdraw an interruption notice that was given here."""

    @operation(
        "Let the node take pods again, and withdraw an interruption notice that was given here; one of the node's"
        " cluster is withdrawn there",
        answer=ref("Node"),
    )
    def post(self, call: Call, name: str) -> Answer:
        return Answer(node_detail(uncordon_node(_changeable(call, name), actor=call.actor), None))


class NodeDrain(ApiView):
    """Cordon a node and requeue its preemptible jobs."""

    @operation(
        "Cordon and send preemptible jobs back to the queue; a dry run lists them", answer=ref("Drain")
    )
    def post(self, call: Call, name: str) -> Answer:
        node = _changeable(call, name)
        stays = [job for job in jobs_on(node) if not job.is_preemptible]
        moves = drain_node(node, actor=call.actor)
        return _moved(node, moves, stays)


class NodeInterruptionNotice(ApiView):
    """Announce that the provider will withdraw a spot node."""

    @operation(
        "Announce that the node's provider will withdraw it soon: it is cordoned, elastic jobs on it shrink, and others"
        " save a checkpoint and are queued again; a dry run lists them. Uncordon it to withdraw the notice",
        answer=ref("Drain"),
        body=INTERRUPTION,
    )
    def post(self, call: Call, name: str) -> Answer:
        node = _changeable(call, name)
        moves = interrupt_node(node, call.body["in_seconds"], actor=call.actor)
        return _moved(node, moves)


class NodeConfirmDead(ApiView):
    """Confirm that an unreachable node is dead: its pods' GPUs are released and their jobs requeued."""

    @operation(
        "Say that a node which does not answer is dead: its pods' GPUs are released and their jobs go on elsewhere;"
        " a dry run lists them",
        answer=ref("Drain"),
    )
    def post(self, call: Call, name: str) -> Answer:
        node = _changeable(call, name)
        moves = confirm_dead(node, actor=call.actor)
        return _moved(node, moves)


def _changeable(call: Call, name: str) -> Node:
    require_admin(call.actor)
    return node_for(call.actor, name)


def _moved(node: Node, moves: Iterable[Job], stays: Iterable[Job] = ()) -> Answer:
    shown = {"moves": [_on_node(job) for job in moves], "stays": [_on_node(job) for job in stays]}
    return Answer({"node": node.name} | shown)


def _node_revision(node: Node) -> Any:
    return [node.name, node.pool_id, node.is_cordoned]


def _pool_named(node: Node, name: str | None) -> NodePool | None:
    if name is None:
        return None
    pool = NodePool.objects.filter(cluster=node.cluster, name=name).first()
    if pool is None:
        raise bad_request("/node_pool", "no_such_node_pool", f"{node.cluster.name} has no node pool {name}.")
    return pool


def _on_node(job: Job) -> dict[str, Any]:
    return {"id": str(job.pk), "name": job.name, "project": job.project.name, "user": job.user.username}
