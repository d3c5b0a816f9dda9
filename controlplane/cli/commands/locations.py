"""`yard cache-location`: the cache directories of a cluster's nodes, or on Kubernetes the volumes for some of them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from controlplane import notation
from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.errors import DONE
from controlplane.cli.parsing import Parser, argument, key_value
from controlplane.cli.session import Session

size_mib = argument(notation.parse_size, notation.SIZE)


def create_arguments(parser: Parser) -> None:
    """Declare a name, a cluster, and the nodes."""
    parser.examples = [
        "yard cache-location create fast --cluster local --node-pool a100 --directory /nvme/caches",
        "yard cache-location create zone-b --cluster prod --node-label zone=b --storage-class nfs-b --room 500Gi",
    ]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--cluster", metavar="C", required=True)
    parser.add_argument("--node-pool", metavar="P", action="append", default=[], help="repeat for several")
    parser.add_argument(
        "--node-label",
        type=key_value,
        metavar="K=V",
        action="append",
        default=[],
        help="of nodes with all of these",
    )
    parser.add_argument("--directory", metavar="DIR", help="default: below the cache directory of the server")
    parser.add_argument(
        "--storage-class", metavar="CLASS", help="on Kubernetes, of its volumes; default: the cluster's"
    )
    parser.add_argument(
        "--one-node",
        action="store_true",
        help="on Kubernetes: its volumes are ReadWriteOnce, for a location of one node",
    )
    parser.add_argument(
        "--room",
        type=size_mib,
        metavar="SIZE",
        help="such as 500Gi; default: what its disk has; on Kubernetes, of each project's volume",
    )


def create(args: Namespace, session: Session) -> int:
    """Create a cache location for some nodes of a cluster."""
    body: dict[str, Any] = {
        "name": args.name,
        "cluster": args.cluster,
        "node_pools": args.node_pool,
        "node_labels": dict(args.node_label),
        "directory": args.directory,
        "storage_class": args.storage_class,
        "access_mode": "ReadWriteOnce" if args.one_node else None,
        "room_bytes": args.room and args.room << 20,
    }
    made = session.client.post("cache-locations", {key: value for key, value in body.items() if value})
    fits = formats.size(made["free_bytes"])
    session.output.object(made, f"{made['name']} is a cache location of {made['cluster']}, {fits} fit")
    return DONE


def delete_arguments(parser: Parser) -> None:
    """Declare the location to delete; it must have no caches."""
    parser.examples = ["yard cache-location delete zone-b"]
    parser.add_argument("name", metavar="NAME")


def delete(args: Namespace, session: Session) -> int:
    """Delete a cache location; its nodes then use the cluster's default location."""
    session.client.delete(f"cache-locations/{segment(args.name)}")
    session.output.object({"name": args.name}, f"{args.name} is deleted")
    return DONE
