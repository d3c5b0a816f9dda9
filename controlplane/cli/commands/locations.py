"""`yard cache-location`: the cache directories of a cluster's nodes, or on Kubernetes the volumes for some of them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from controlplane import notation
from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.confirmation import add_needless_yes
from controlplane.cli.errors import USAGE, CliError, require_changes
from controlplane.cli.parsing import Parser, add_flag, argument, given, key_value
from controlplane.cli.session import Session
from controlplane.cli.tables import Column

# Room of a location that only its disk limits.
DISK = "disk"


def _room(text: str) -> int | str:
    return DISK if text == DISK else notation.parse_size(text)


room = argument(_room, f"{notation.SIZE}, or {DISK}")
LOCATION_COLUMNS = (
    Column("LOCATION", lambda row: row["name"]),
    Column("CLUSTER", lambda row: row["cluster"]),
    Column(
        "ROOM",
        lambda row: "disk" if row["room_bytes"] is None else formats.size(row["room_bytes"]),
        is_number=True,
    ),
    Column("COMMITTED", lambda row: formats.size(row["committed_bytes"]), is_number=True),
    Column("FITS", lambda row: formats.size(row["free_bytes"]), is_number=True),
    Column("CACHES", lambda row: row["caches"], is_number=True),
    Column("HITS", lambda row: row["hits"], is_number=True),
    Column("DAYS", lambda row: row["unused_days"], is_number=True),
)


def list_arguments(parser: Parser) -> None:
    parser.examples = ["yard cache-location list"]


def list_(args: Namespace, session: Session) -> None:
    """List cache locations with their room and hits."""
    session.show_list("cache-locations", LOCATION_COLUMNS, 500)


def create_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard cache-location create fast --cluster local --node-pool a100 --directory /nvme/caches",
        "yard cache-location create zone-b --cluster prod --node-label zone=b --storage-class nfs-b --room 500Gi",
    ]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--cluster", metavar="C", required=True)
    _add_changeable(parser)
    parser.add_argument("--directory", metavar="DIR", help="default: below the cache directory of the server")
    parser.add_argument(
        "--storage-class", metavar="CLASS", help="on Kubernetes, of its volumes; default: the cluster's"
    )
    add_flag(
        parser, "--one-node", about="on Kubernetes: its volumes are ReadWriteOnce, for a location of one node"
    )


def create(args: Namespace, session: Session) -> None:
    """Create a cache location for the nodes of a cluster that the options select."""
    body: dict[str, Any] = {
        "name": args.name,
        "cluster": args.cluster,
        "directory": args.directory,
        "storage_class": args.storage_class,
        "access_mode": "ReadWriteOnce" if args.one_node else None,
        **_changeable(args),
    }
    made = session.client.post(
        "cache-locations", {key: value for key, value in body.items() if value not in (None, "")}
    )
    fits = formats.size(made["free_bytes"])
    session.output.object(made, f"{made['name']} is a cache location of {made['cluster']}, {fits} fit")


def edit_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard cache-location edit local --room 2Ti --unused-days 7",
        "yard cache-location edit zone-b --node-label topology.kubernetes.io/zone=b --room disk",
    ]
    parser.add_argument("name", metavar="NAME")
    _add_changeable(parser)
    parser.add_argument(
        "--clear",
        action="append",
        default=[],
        choices=["node-pools", "node-labels"],
        help="remove all node pools, or all node labels, from the location; repeat for both",
    )


def edit(args: Namespace, session: Session) -> None:
    """Change the given fields of a cache location. Given node pools or labels replace all present ones."""
    changes = _changeable(args)
    for cleared in args.clear:
        field = cleared.replace("-", "_")
        if changes.get(field):
            raise CliError(f"--clear {cleared} and --{cleared[:-1]} exclude each other", USAGE)
        changes[field] = [] if field == "node_pools" else {}
    require_changes(changes, "cache-location edit")
    changed = session.client.patch(f"cache-locations/{segment(args.name)}", changes)
    session.output.object(changed, f"{changed['name']} changed, {formats.size(changed['free_bytes'])} fit")


def delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard cache-location delete zone-b"]
    parser.add_argument("name", metavar="NAME")
    add_needless_yes(parser)


def delete(args: Namespace, session: Session) -> None:
    """Delete a cache location, which must have no caches. Its nodes then use the cluster's default location."""
    session.client.delete(f"cache-locations/{segment(args.name)}")
    session.output.object({"name": args.name}, f"{args.name} is deleted")


def _add_changeable(parser: Parser) -> None:
    """Declare the options for fields that can be set for a new location and changed later."""
    parser.add_argument("--node-pool", metavar="P", action="append", help="repeat for several")
    parser.add_argument(
        "--node-label", type=key_value, metavar="K=V", action="append", help="of nodes with all of these"
    )
    parser.add_argument(
        "--room",
        type=room,
        metavar="SIZE",
        help="such as 500Gi; disk (the default): what its disk has, on Kubernetes the cluster's cache_size;"
        " on Kubernetes, of each project's volume made from then on",
    )
    parser.add_argument(
        "--unused-days", type=int, metavar="N", help="remove caches that no job used for N days; default: 1"
    )


def _changeable(args: Namespace) -> dict[str, Any]:
    """Return the request's fields for the given options of `_add_changeable`."""
    labels = args.node_label and dict(args.node_label)
    options = {"node_pools": args.node_pool, "node_labels": labels, "unused_days": args.unused_days}
    changes = given(options)
    if args.room is not None:
        changes["room_bytes"] = None if args.room == DISK else args.room << 20
    return changes
