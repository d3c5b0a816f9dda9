"""Commands for nodes and node pools: list, describe, cordon, uncordon, drain, move; create, edit and delete pools."""

from __future__ import annotations

import sys
from argparse import BooleanOptionalAction, Namespace

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.commands.jobs import devices_text
from controlplane.cli.confirmation import add_needless_yes, add_preview, confirm_name
from controlplane.cli.lookup import each_name, node_path
from controlplane.cli.parsing import Parser, add_flag, duration_seconds
from controlplane.cli.session import Session
from controlplane.cli.tables import Column, Row


def state_of(node: Row) -> str:
    """Return the word for a node's condition: `unreachable`, `not_ready`, `interrupted`, `cordoned` or `ready`."""
    if not node.get("is_reachable", True):
        return "unreachable"
    if not node["is_ready"]:
        return "not_ready"
    if node.get("interruption_at"):
        return "interrupted"
    return "cordoned" if node["is_cordoned"] else "ready"


def memory_use(node: Row) -> float | None:
    """Return the used fraction (0 to 1) of the memory of the node's GPUs that are measured; None if none is."""
    devices = [device for device in node["devices"] if device.get("memory_used_mib") is not None]
    total = sum(device["memory_mib"] for device in devices)
    return sum(device["memory_used_mib"] for device in devices) / total if total else None


def _last_seen(node: Row) -> str:
    """Return how long ago an unreachable or unready node was last seen; "" for others."""
    # For others the time is only that of their last change.
    return "" if node["is_ready"] and node["is_reachable"] else formats.age(node.get("seen_at"))


CLUSTER = Column("CLUSTER", lambda node: node.get("cluster"), is_wide=True)
NODE_COLUMNS = (
    Column("NAME", lambda node: node["name"]),
    Column("STATE", state_of),
    Column("POOL", lambda node: node.get("node_pool")),
    Column("SPOT", lambda node: "yes" if node.get("is_spot") else "", is_wide=True),
    Column("GPUS", lambda node: formats.gpus(node.get("gpus")), is_number=True),
    Column("ALLOCATED", lambda node: formats.gpus(node.get("allocated_gpus")), is_number=True),
    Column("UTIL", lambda node: formats.percent(node.get("gpu_utilization")), is_number=True),
    CLUSTER,
    Column("MEMORY", lambda node: formats.percent(memory_use(node)), is_number=True),
    Column(
        "MODEL",
        lambda node: ", ".join(sorted({str(device.get("model")) for device in node["devices"]})),
        is_wide=True,
    ),
    Column("MESSAGE", lambda node: node.get("message"), is_wide=True),
    Column("SEEN", _last_seen, is_wide=True, is_number=True),
)
POOL_COLUMNS = (
    Column("NAME", lambda pool: pool["name"]),
    Column("CLUSTER", lambda pool: pool["cluster"]),
    Column("SPOT", lambda pool: "yes" if pool["is_spot"] else ""),
    Column("NODES", lambda pool: ", ".join(pool["nodes"])),
)
_WHERE_SEVERAL = "where several clusters have a pool of this name"
DEVICE_COLUMNS = (
    Column("GPU", lambda device: device.get("index"), is_number=True),
    Column("ALLOCATED", lambda device: formats.gpus(device.get("allocated")), is_number=True),
    Column("MEMORY", lambda device: formats.mebibytes(device.get("memory_mib")), is_number=True),
    Column("USED", lambda device: formats.mebibytes(device.get("memory_used_mib")), is_number=True),
    Column("UTIL", lambda device: formats.percent(device.get("utilization")), is_number=True),
    Column("USED BY", lambda device: device["used_by"]),
)
POD_COLUMNS = (
    Column("POD", lambda pod: pod.get("name")),
    Column("PROJECT", lambda pod: pod.get("project")),
    Column("USER", lambda pod: pod.get("user")),
    Column("STATE", lambda pod: pod.get("state")),
    Column("DEVICES", devices_text),
)


def list_nodes_arguments(parser: Parser) -> None:
    parser.examples = ["yard list nodes", "yard list nodes -o wide"]


def list_nodes(args: Namespace, session: Session) -> None:
    """List all nodes, with their clusters if there are several."""
    page = session.client.pages("nodes", {}, 10_000)
    has_one = len({node.get("cluster") for node in page["results"]}) <= 1
    shown = {CLUSTER: CLUSTER._replace(is_wide=has_one)}
    session.output.objects(page, [shown.get(column, column) for column in NODE_COLUMNS])


def describe_node_arguments(parser: Parser) -> None:
    parser.examples = ["yard describe node dgx1-1"]
    parser.add_argument("name", metavar="NAME")


def describe_node(args: Namespace, session: Session) -> None:
    """Print one node with its GPUs and pods. Pods of jobs that the user may not see have no names."""
    node = session.get(node_path(args.name))
    if session.output.is_data:
        session.output.data(node)
        return
    session.output.rows([node], NODE_COLUMNS)
    if node.get("interruption_at"):
        session.output.line(f"\nIts provider withdraws it at {formats.local_time(node['interruption_at'])}.")
    if node.get("message"):
        session.output.line(f"\n{node['message']}")
    session.output.line("\nGPUs")
    session.output.rows(_devices_with_users(node), DEVICE_COLUMNS)
    if node["pods"]:
        session.output.line("\nPods")
        session.output.rows(node["pods"], POD_COLUMNS)


def _devices_with_users(node: Row) -> list[Row]:
    """Return the node's devices, each with `used_by`: the pods that hold it, or only their projects if the user may
    not see them."""
    users: dict[int, list[str]] = {}
    for pod in node["pods"]:
        for device in pod["devices"]:
            users.setdefault(device["index"], []).append(pod["name"] or f"a job of {pod['project']}")
    return [
        device
        | {"used_by": ", ".join(users.get(device["index"], ["others"] if device.get("is_foreign") else []))}
        for device in node["devices"]
    ]


def node_cordon_arguments(parser: Parser) -> None:
    _names(parser, ["yard node cordon dgx1-1"])


def node_cordon(args: Namespace, session: Session) -> int:
    """Place no new pods on these nodes; running ones stay."""
    return _each(args, session, "cordon", "is cordoned")


def node_uncordon_arguments(parser: Parser) -> None:
    _names(parser, ["yard node uncordon dgx1-1"])


def node_uncordon(args: Namespace, session: Session) -> int:
    """Place new pods on these nodes again, and withdraw an interruption notice that a user gave. The server refuses
    for a node with a notice of its cluster."""
    return _each(args, session, "uncordon", "takes work again")


def node_drain_arguments(parser: Parser) -> None:
    _names(parser, ["yard node drain dgx1-1 --dry-run", "yard node drain dgx1-1"])
    add_flag(parser, "--dry-run", about="list what would move, change nothing")


def node_drain(args: Namespace, session: Session) -> int:
    """Cordon nodes and requeue the preemptible jobs on them; print the jobs. With --dry-run only print them."""
    query = {"dry_run": True} if args.dry_run else None

    def drain(name: str) -> None:
        answer = session.client.post(f"{node_path(name)}/drain", query=query)
        session.output.object(answer, drain_text(name, answer, args.dry_run))

    return each_name(args.names, session, drain)


def node_interruption_notice_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard node interruption-notice spot-7 --in 2m --dry-run",
        "yard node interruption-notice spot-7 --in 120s",
    ]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--in",
        dest="seconds",
        type=duration_seconds,
        required=True,
        metavar="TIME",
        help="from now until the node is withdrawn, such as 120s",
    )
    add_flag(parser, "--dry-run", about="list the jobs that leave, change nothing")


def node_interruption_notice(args: Namespace, session: Session) -> None:
    """Announce that a node's provider will withdraw it in --in seconds; print the jobs that leave it. With --dry-run
    only print them. `yard node uncordon` withdraws the notice."""
    query = {"dry_run": True} if args.dry_run else None
    path = f"{node_path(args.name)}/interruption-notice"
    answer = session.client.post(path, {"in_seconds": args.seconds}, query=query)
    jobs = ", ".join(job["name"] for job in answer["moves"]) or "no job"
    verb = "would be left" if args.dry_run else "is left"
    when = formats.duration(args.seconds)
    session.output.object(answer, f"node {args.name} {verb} within {when} by {jobs}")


def list_pools_arguments(parser: Parser) -> None:
    parser.examples = ["yard list node-pools"]


def list_pools(args: Namespace, session: Session) -> None:
    """Print every node pool."""
    session.show_list("node-pools", POOL_COLUMNS)


def pool_create_arguments(parser: Parser) -> None:
    parser.examples = ["yard node-pool create burst --spot", "yard node-pool create a100 --cluster prod"]
    parser.add_argument("name", metavar="NAME")
    add_flag(parser, "--spot", about="its provider may withdraw its nodes at any time")
    parser.add_argument("--cluster", metavar="NAME", help="default: the first cluster")


def pool_create(args: Namespace, session: Session) -> None:
    """Create an empty node pool; `yard node move` puts nodes into it."""
    body = {"name": args.name, "is_spot": args.spot} | ({"cluster": args.cluster} if args.cluster else {})
    answer = session.client.post("node-pools", body)
    session.output.object(
        answer,
        f"node pool {args.name} created on {answer['cluster']}; nodes into it: yard node move NODE --pool {args.name}",
    )


def pool_delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard node-pool delete burst"]
    parser.add_argument("name", metavar="NAME")
    add_needless_yes(parser)
    parser.add_argument("--cluster", metavar="NAME", help=_WHERE_SEVERAL)


def pool_delete(args: Namespace, session: Session) -> None:
    """Delete a node pool; refused while nodes are in it or projects name it."""
    query = {"cluster": args.cluster} if args.cluster else None
    session.client.delete(f"node-pools/{segment(args.name)}", query)
    session.output.object({"name": args.name}, f"node pool {args.name} deleted")


def node_move_arguments(parser: Parser) -> None:
    _names(parser, ["yard node move dgx1-1 dgx1-2 --pool burst", "yard node move dgx1-1 --no-pool"])
    pool = parser.add_mutually_exclusive_group(required=True)
    pool.add_argument("--pool", metavar="NAME", help="a node pool of their cluster")
    add_flag(pool, "--no-pool", about="take them out of their pools")


def node_move(args: Namespace, session: Session) -> int:
    """Move nodes to another node pool of their cluster. Running pods stay; new ones are placed by the new pool."""
    outcome = f"is in {args.pool}" if args.pool else "is in no pool"

    def move(name: str) -> None:
        answer = session.client.patch(node_path(name), {"node_pool": args.pool})
        session.output.object(answer, f"node {name} {outcome}")

    return each_name(args.names, session, move)


def pool_edit_arguments(parser: Parser) -> None:
    parser.examples = ["yard node-pool edit burst --spot", "yard node-pool edit burst --no-spot"]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "--spot",
        action=BooleanOptionalAction,
        required=True,
        help="whether the provider may withdraw its nodes at any time",
    )
    parser.add_argument("--cluster", metavar="NAME", help=_WHERE_SEVERAL)


def pool_edit(args: Namespace, session: Session) -> None:
    """Mark a node pool as spot or not, of --cluster if several clusters have a pool of this name. Elastic jobs that
    shrink remove workers on spot nodes first."""
    body = {"is_spot": args.spot} | ({"cluster": args.cluster} if args.cluster else {})
    answer = session.client.patch(f"node-pools/{segment(args.name)}", body)
    session.output.object(answer, f"node pool {args.name} is {'spot' if args.spot else 'not spot'}")


def node_confirm_dead_arguments(parser: Parser) -> None:
    parser.examples = ["yard node confirm-dead dgx1-1 --dry-run", "yard node confirm-dead dgx1-1 --yes"]
    parser.add_argument("name", metavar="NAME")
    add_preview(parser, "list the jobs that would be requeued")


def node_confirm_dead(args: Namespace, session: Session) -> None:
    """Confirm that an unreachable node is dead: it is cordoned, its GPUs are released and its jobs are queued again.
    On a terminal the user must confirm, unless --yes is given. With --dry-run change nothing."""
    if sys.stdin.isatty() and not (args.yes or args.dry_run):
        asked = f"Is {args.name} off, or cut from its storage and network? Its jobs start again elsewhere."
        confirm_name(args.name, f"{asked} Type its name", "released")
    query = {"dry_run": True} if args.dry_run else None
    answer = session.client.post(f"{node_path(args.name)}/confirm-dead", query=query)
    jobs = ", ".join(job["name"] for job in answer["moves"]) or "no job"
    verb = "would be released" if args.dry_run else "released and cordoned"
    session.output.object(answer, f"node {args.name} {verb}; it held {jobs}")


def drain_text(name: str, answer: Row, is_dry_run: bool) -> str:
    """Return the text about a drain: the jobs that it moves, or with `is_dry_run` would move, and those that stay
    until they end. `answer`: the REST object."""
    moving, staying = (", ".join(job["name"] for job in answer[key]) for key in ("moves", "stays"))
    verb = "would move" if is_dry_run else "moves"
    first = f"node {name}: {verb} {moving}" if moving else f"node {name}: nothing to move"
    return f"{first}; stays until it ends: {staying}" if staying else first


def _names(parser: Parser, examples: list[str]) -> None:
    parser.examples = examples
    parser.add_argument("names", metavar="NAME", nargs="+")


def _each(args: Namespace, session: Session, verb: str, outcome: str) -> int:
    def act(name: str) -> None:
        answer = session.client.post(f"{node_path(name)}/{verb}")
        session.output.object(answer, f"node {name} {outcome}")

    return each_name(args.names, session, act)
