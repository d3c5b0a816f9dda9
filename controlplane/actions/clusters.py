"""Actions on clusters: register, edit, check, detach.

A cluster with credentials is checked before use: the action queues a check command, and the worker that
executes it calls `settle_check`. Edits of an attached cluster are stored in the command and applied only if
the check succeeds; until then the old settings remain.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from controlplane.access import SYSTEM, Actor, require_admin
from controlplane.actions.audit import write_audit, write_fields
from controlplane.actions.errors import Conflict, invalid
from controlplane.actions.events import announce
from controlplane.app_holdings import holdings
from controlplane.clusters.credentials import CredentialsUnreadable, decrypt, encrypt
from controlplane.clusters.node_names import name_here, name_there
from controlplane.engines.kinds import engine_kind
from controlplane.fields import LONGEST_MESSAGE
from controlplane.loop.wake import wake
from controlplane.models import Cluster, Command, Event, Node
from controlplane.models.commands import CommandQuerySet
from controlplane.queries.projects import namespace_prefix

# The length of the column, which PostgreSQL enforces.
LONGEST_NODE_NAME = 253


def register_cluster(
    name: str,
    engine: str,
    settings: Mapping[str, Any],
    *,
    actor: Actor,
    scheduler: str = "planner",
    usage_half_life_hours: int | None = None,
    credentials: Mapping[str, Any] | None = None,
) -> Cluster:
    """Register a cluster; an engine with a preflight must pass it before the cluster is used. `usage_half_life_hours`
    None: the server's setting. Raise Forbidden unless the actor is an admin, Invalid for a scheduler that the engine
    lacks, Conflict if the name is taken."""
    require_admin(actor)
    _check_scheduler(engine, scheduler)
    cluster = Cluster(
        name=name,
        engine=engine,
        settings=dict(settings),
        scheduler=scheduler,
        usage_half_life_hours=usage_half_life_hours,
        credentials=encrypt(credentials or {}),
    )
    try:
        with transaction.atomic():
            if engine_kind(engine).has_checks:
                cluster.state = Cluster.CHECKING
            cluster.save()
            after = {"engine": engine, "scheduler": scheduler, "settings": cluster.settings}
            write_audit(actor, "cluster.register", "cluster", name, after=after)
            Event.objects.append([Event(kind="cluster.registered", actor=actor.name, message=name)])
            if engine_kind(engine).has_checks:
                _order_check(cluster, {})
            wake()
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a cluster named {name} already.") from error
    return cluster


def edit_cluster(
    cluster: Cluster,
    changes: Mapping[str, Any],
    *,
    actor: Actor,
    credentials: Mapping[str, Any] | None = None,
) -> Cluster:
    """Change `scheduler`, `settings` (replaced as a whole), `usage_half_life_hours` or the credentials; credentials
    with a `context` only select another context of the stored kubeconfig. An attached cluster whose engine has a
    preflight changes only when the preflight has passed. Raise Forbidden unless the actor is an admin, Invalid for a
    scheduler that the engine lacks, Conflict for another `namespace_prefix` while the cluster has projects, another
    `node_suffix` while pods run, or a new `context` if the stored credentials cannot be decrypted."""
    require_admin(actor)
    _check_scheduler(cluster.engine, changes.get("scheduler", cluster.scheduler))
    _check_prefix(cluster, changes.get("settings", cluster.settings))
    if trouble := _why_not_renamed(cluster, changes.get("settings", cluster.settings)):
        raise Conflict("nodes_in_use", trouble)
    stored = {"credentials": _merged(cluster, credentials)} if credentials else {}
    before = {name: getattr(cluster, name) for name in changes}
    with transaction.atomic():
        if engine_kind(cluster.engine).has_checks:
            _order_edit(cluster, {**changes, **stored})
        else:
            write_fields(cluster, changes)
        after = {**changes, **({"credentials": "replaced"} if credentials else {})}
        write_audit(actor, "cluster.edit", "cluster", cluster.name, before=before, after=after)
        announce(Event(kind="cluster.edited", actor=actor.name, message=cluster.name))
    return cluster


def check_cluster(cluster: Cluster, *, actor: Actor) -> Cluster:
    """Queue a new preflight of the cluster. Raise Forbidden unless the actor is an admin, Conflict if its engine has
    no preflight."""
    require_admin(actor)
    if not engine_kind(cluster.engine).has_checks:
        raise Conflict(
            "nothing_to_check", f"{cluster.name} is reached without credentials; there is nothing to check."
        )
    with transaction.atomic():
        _order_edit(cluster, {})
        write_audit(actor, "cluster.check", "cluster", cluster.name)
        wake()
    return cluster


def detach_cluster(cluster: Cluster, *, actor: Actor) -> None:
    """Detach a cluster, erase its credentials and delete its nodes. Raise Forbidden unless the actor is an admin.

    Raise Conflict while the cluster has projects or unfinished jobs, or, while it is reachable, cleanup commands
    that may still succeed.
    """
    require_admin(actor)
    with transaction.atomic():
        _refuse_in_use(cluster)
        # Remaining commands are cancelled, because they cannot be executed without the credentials.
        _open_orders(cluster).cancel()
        # Payloads are erased because they may contain credentials.
        Command.objects.filter(cluster=cluster, kind=Command.CHECK_CLUSTER).update(payload={})
        Cluster.objects.filter(pk=cluster.pk).update(detached_at=timezone.now(), credentials="")
        # All its projects are gone, so no pod refers to its nodes.
        Node.objects.filter(cluster=cluster).delete()
        write_audit(actor, "cluster.detach", "cluster", cluster.name)
        announce(Event(kind="cluster.detached", actor=actor.name, message=cluster.name))


def candidate(cluster: Cluster, payload: Mapping[str, Any]) -> Cluster:
    """Return an unsaved copy of the cluster on which to run the preflight. `settings`, `scheduler` and `credentials`
    in a check command's `payload` replace the stored ones."""
    looked_at = copy.copy(cluster)
    for name in ("settings", "scheduler", "credentials"):
        setattr(looked_at, name, payload.get(name, getattr(cluster, name)))
    return looked_at


def settle_check(command: Command, checks: Sequence[Mapping[str, str]], now: datetime) -> None:
    """Write a preflight's result. `checks`: dicts with `name`, `outcome`, `message` and `without_it`. Without
    failures the cluster is attached with the checked settings; with failures it is refused, or keeps its old settings
    if it was attached. Writes nothing if the cluster was detached or a later check is pending."""
    with transaction.atomic():
        cluster = Cluster.objects.select_for_update(no_key=True).get(pk=command.required_cluster_id)
        # The later check's payload includes the changes of this one, so only its result counts.
        if cluster.detached_at is not None or _open_checks(cluster).filter(pk__gt=command.pk).exists():
            return
        failed = [check for check in checks if check["outcome"] == "failed"]
        if not failed and (
            trouble := _rename_nodes(cluster, command.payload.get("settings", cluster.settings))
        ):
            failed = [{"name": "nodes", "outcome": "failed", "message": trouble, "without_it": ""}]
            checks = [*checks, *failed]
        verdict = Cluster.REFUSED if failed else Cluster.ATTACHED
        is_decided = cluster.state != Cluster.ATTACHED
        values = {} if failed else dict(command.payload)
        values |= {"checks": [dict(check) for check in checks], "checked_at": now}
        write_fields(cluster, values | ({"state": verdict} if is_decided else {}))
        # Every user may read events, so the event contains no details; admins see those on the cluster.
        message = (
            f"{cluster.name}: {', '.join(check['name'] for check in failed)}" if failed else cluster.name
        )
        data = {"cluster": cluster.name, "failed": [check["name"] for check in failed]}
        kind = f"cluster.{verdict}" if is_decided else "cluster.checked"
        announce(Event(kind=kind, actor=SYSTEM.name, message=message[:LONGEST_MESSAGE], data=data))


def _check_scheduler(engine: str, scheduler: str) -> None:
    kind = engine_kind(engine)
    if kind.scheduler(scheduler) is None:
        known = ", ".join(one.name for one in kind.schedulers)
        detail = f"The scheduler of a {engine} cluster is one of: {known}."
        raise invalid("/scheduler", "unknown_scheduler", detail)


def _check_prefix(cluster: Cluster, settings: Mapping[str, Any]) -> None:
    if namespace_prefix(settings) != namespace_prefix(cluster.settings) and cluster.projects.exists():
        detail = f"{cluster.name} has projects, whose namespaces cannot be renamed; leave namespace_prefix as it is."
        raise Conflict("cluster_in_use", detail)


def _why_not_renamed(cluster: Cluster, settings: Mapping[str, Any]) -> str:
    """Return why these settings' `node_suffix` cannot be applied while pods run on the cluster; "" if it can."""
    old, new = _node_suffix(cluster.settings), _node_suffix(settings)
    held = sum(app.pods_on(cluster) for app in holdings()) if old != new else 0
    if held:
        return (
            f"{cluster.name} holds {held} unfinished pods, which are found by the names of their nodes; change"
            " node_suffix when nothing runs there."
        )
    return ""


def _rename_nodes(cluster: Cluster, settings: Mapping[str, Any]) -> str:
    """Rename the cluster's nodes if these settings change `node_suffix`. Return why that is impossible, or ""."""
    old, new = _node_suffix(cluster.settings), _node_suffix(settings)
    if old == new:
        return ""
    if trouble := _why_not_renamed(cluster, settings):
        return trouble
    nodes = list(Node.objects.filter(cluster=cluster))
    names = {node.name: name_here(name_there(node.name, old), new) for node in nodes}
    if trouble := _why_not_called(cluster, names):
        return trouble
    for node in nodes:
        node.name = names[node.name]
    Node.objects.bulk_update(nodes, ["name"])
    return ""


def _why_not_called(cluster: Cluster, names: Mapping[str, str]) -> str:
    """Return why the nodes cannot get the new `names` (by old name), or "" if they can. A name that another node has
    now is refused even if that node is renamed too, because the unique constraint would refuse it."""
    too_long = next((name for name in names.values() if len(name) > LONGEST_NODE_NAME), "")
    if too_long:
        return f"{too_long} is longer than {LONGEST_NODE_NAME} characters: choose another node_suffix."
    count = Counter(names.values())
    twice = next((new for old, new in names.items() if count[new] > 1 or (new != old and new in names)), "")
    if twice:
        return f"Two nodes of {cluster.name} would be called {twice}: choose another node_suffix."
    others = Node.objects.exclude(cluster=cluster).filter(name__in=names.values())
    if taken := others.values_list("name", flat=True).first():
        return f"Another cluster has a node {taken}: choose another node_suffix."
    return ""


def _node_suffix(settings: Mapping[str, Any]) -> str:
    return str(settings.get("node_suffix", ""))


def _merged(cluster: Cluster, credentials: Mapping[str, Any]) -> str:
    if set(credentials) - {"context"}:
        return encrypt(credentials)
    try:
        return encrypt({**decrypt(cluster.credentials), **credentials})
    except CredentialsUnreadable as error:
        raise Conflict("credentials_unreadable", str(error)) from error


def _order_edit(cluster: Cluster, changes: Mapping[str, Any]) -> None:
    """Queue a check of the cluster with these changes. An attached cluster keeps its settings until the check passes;
    any other cluster gets the changes at once and returns to CHECKING."""
    if cluster.state == Cluster.ATTACHED:
        _order_check(cluster, changes)
        return
    write_fields(cluster, {**changes, "state": Cluster.CHECKING})
    _order_check(cluster, {})


def _order_check(cluster: Cluster, changes: Mapping[str, Any]) -> None:
    """Queue a check command with `changes` and the changes of unfinished checks, and end those that have not begun."""
    earlier = _open_checks(cluster).order_by("pk")
    payload: dict[str, Any] = {}
    for order in earlier:
        payload |= order.payload
    # The payload is emptied, because it may contain credentials.
    earlier.filter(state=Command.PENDING).update(state=Command.DONE, payload={}, finished_at=timezone.now())
    Command.objects.create(
        kind=Command.CHECK_CLUSTER,
        cluster=cluster,
        subject_kind="cluster",
        subject_id=cluster.name,
        payload={**payload, **changes},
    )


def _open_orders(cluster: Cluster) -> CommandQuerySet:
    return Command.objects.unfinished().filter(cluster=cluster)


def _open_checks(cluster: Cluster) -> CommandQuerySet:
    return _open_orders(cluster).filter(kind=Command.CHECK_CLUSTER)


def _refuse_in_use(cluster: Cluster) -> None:
    for app in holdings():
        app.check_detach(cluster)
    if cluster.projects.exists():
        raise Conflict("cluster_in_use", f"{cluster.name} has projects; delete or move them first.")
    # Cleanup that keeps failing must not prevent the detachment forever.
    promising = _open_orders(cluster).filter(tries__lt=Command.MOST_TRIES)
    if cluster.is_reachable and promising.exclude(kind=Command.CHECK_CLUSTER).exists():
        raise Conflict(
            "cluster_cleaning_up",
            f"{cluster.name} is still being cleaned of what jobs left; try again in a moment.",
        )
