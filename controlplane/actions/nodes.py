"""Actions on nodes and node pools: cordon, uncordon, assign to a pool, create and delete pools."""

from collections.abc import Mapping, Sequence

from django.db import IntegrityError, transaction

from controlplane.access import Actor, require_admin, reread
from controlplane.actions.audit import write_audit
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.app_holdings import holdings
from controlplane.models import Cluster, Event, Node, NodePool, Project


def cordon_node(node: Node, *, actor: Actor) -> Node:
    """Stop placing new pods on the node; running pods stay. Safe to repeat. Raise Forbidden unless the actor is an
    admin."""
    require_admin(actor)
    with transaction.atomic():
        event = write_cordon(node, True, "node.cordoned", actor)
        if event is not None:
            announce(event)
    return node


def uncordon_node(node: Node, *, actor: Actor) -> Node:
    """Allow new pods on the node again, and withdraw an interruption notice that an admin gave. Safe to repeat. Raise
    Forbidden unless the actor is an admin, Conflict while the cluster itself announces an interruption."""
    require_admin(actor)
    with transaction.atomic():
        reread(node, lock=True)
        withdrawn = _withdraw_notice(node, actor)
        uncordoned = write_cordon(node, False, "node.uncordoned", actor)
        events = [event for event in (withdrawn, uncordoned) if event is not None]
        if events:
            announce(*events)
    return node


def _withdraw_notice(node: Node, actor: Actor) -> Event | None:
    """Withdraw the node's interruption notice and write an audit row. Return the event to append, None without a
    notice. Raise Conflict if the cluster gave the notice."""
    if node.interruption_at is None:
        return None
    if not node.interruption_by:
        raise Conflict(
            "notice_of_cluster",
            f"{node.name} has an interruption notice from its cluster, which would be read again. It is withdrawn when "
            "the taint or condition is removed from the node there.",
        )
    before = {"interruption_at": node.interruption_at.isoformat(), "interruption_by": node.interruption_by}
    node.interruption_at, node.interruption_by = None, ""
    node.save(update_fields=["interruption_at", "interruption_by"])
    write_audit(actor, "node.withdraw_notice", "node", node.name, before=before)
    return Event(kind="node.notice_withdrawn", node_id=node.pk, actor=actor.name, message=node.name)


def write_cordon(node: Node, is_cordoned: bool, kind: str, actor: Actor) -> Event | None:
    """Set or clear the cordon and write an audit row with `kind` as its verb. Return an event of this `kind` for the
    caller to append; None, without an audit row, if the node already has the wanted state."""
    changed = Node.objects.filter(pk=node.pk, is_cordoned=not is_cordoned).update(is_cordoned=is_cordoned)
    node.is_cordoned = is_cordoned
    if changed != 1:
        return None
    write_audit(actor, kind, "node", node.name, after={"is_cordoned": is_cordoned})
    return Event(kind=kind, node_id=node.pk, actor=actor.name, message=node.name)


def require_pools(cluster: Cluster, names: Mapping[str, str]) -> None:
    """Raise Invalid for the first of these node pools that the cluster does not have; the message names those that it
    has. `names`: the pools by JSON pointer. One query, none without names."""
    known = set(NodePool.objects.filter(cluster=cluster).values_list("name", flat=True)) if names else set()
    for pointer, name in names.items():
        if name not in known:
            pools = ", ".join(sorted(known)) or "none"
            detail = f"{cluster.name} has no node pool {name}; its pools are: {pools}."
            raise invalid(pointer, "no_such_node_pool", detail)


def create_pool(cluster: Cluster, name: str, *, actor: Actor, is_spot: bool = False) -> NodePool:
    """Create an empty node pool. `is_spot`: the provider may take its nodes away at any time. Raise Forbidden unless
    the actor is an admin, Conflict if the cluster has a pool with this name."""
    require_admin(actor)
    try:
        with transaction.atomic():
            pool = NodePool.objects.create(cluster=cluster, name=name, is_spot=is_spot)
            write_audit(actor, "node_pool.create", "node_pool", name)
            Event.objects.append([Event(kind="node_pool.created", actor=actor.name, message=name)])
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a node pool named {name} already.") from error
    return pool


def delete_pool(pool: NodePool, *, actor: Actor) -> None:
    """Delete an empty node pool. Raise Forbidden unless the actor is an admin, Conflict while nodes are in it, or
    projects of its cluster or data of an app (`Holdings.check_pool_deletion`) name it."""
    require_admin(actor)
    with transaction.atomic():
        nodes = list(pool.nodes.order_by("name").values_list("name", flat=True)[:5])
        if nodes:
            detail = f"{pool.name} has nodes ({', '.join(nodes)}); move them to another pool first."
            raise Conflict("node_pool_in_use", detail)
        projects = Project.objects.filter(cluster=pool.cluster_id).order_by("name")
        named = [
            name for name, pools in projects.values_list("name", "node_pools") if _names(pools, pool.name)
        ]
        if named:
            detail = (
                f"Projects name {pool.name} ({', '.join(named[:5])}); take it out of their node pools first."
            )
            raise Conflict("node_pool_in_use", detail)
        for app in holdings():
            app.check_pool_deletion(pool)
        write_audit(actor, "node_pool.delete", "node_pool", pool.name, before={"is_spot": pool.is_spot})
        pool.delete()
        announce(Event(kind="node_pool.deleted", actor=actor.name, message=pool.name))


def _names(pools: Mapping[str, Sequence[str]], name: str) -> bool:
    return any(name in found for found in pools.values())


def mark_pool(pool: NodePool, is_spot: bool, *, actor: Actor) -> NodePool:
    """Set whether a pool consists of spot nodes, which their provider may take away at any time. Raise Forbidden
    unless the actor is an admin."""
    require_admin(actor)
    with transaction.atomic():
        changed = NodePool.objects.filter(pk=pool.pk, is_spot=not is_spot).update(is_spot=is_spot)
        pool.is_spot = is_spot
        if changed:
            write_audit(actor, "node_pool.edit", "node_pool", pool.name, after={"is_spot": is_spot})
            message = f"{pool.name}: {'spot' if is_spot else 'not spot'}"
            Event.objects.append([Event(kind="node_pool.edited", actor=actor.name, message=message)])
    return pool


def set_node_pool(node: Node, pool: NodePool | None, *, actor: Actor) -> Node:
    """Move a node to a pool; None removes it from its pool. The caller checks that the pool belongs to the node's
    cluster. Raise Forbidden unless the actor is an admin."""
    require_admin(actor)
    with transaction.atomic():
        before = {"pool": node.pool.name if node.pool else None}
        node.pool = pool
        node.save(update_fields=["pool"])
        after = {"pool": pool.name if pool else None}
        write_audit(actor, "node.set_pool", "node", node.name, before=before, after=after)
        announce(Event(kind="node.moved", node_id=node.pk, actor=actor.name, message=node.name, data=after))
    return node
