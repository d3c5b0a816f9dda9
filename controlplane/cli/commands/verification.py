"""`yard dataset verify`: the content of a version in the lake and in caches."""

from __future__ import annotations

from argparse import Namespace

from controlplane.cli import formats
from controlplane.cli.commands.datasets import find_version, version_name
from controlplane.cli.errors import DONE, FAILED
from controlplane.cli.parsing import Parser
from controlplane.cli.session import Session
from controlplane.cli.tables import Row

VERIFIED_AT_ONCE, VERIFIED_BYTES = 1000, 256 << 20


def verify_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset verify chest-xray@3"]
    parser.add_argument("version", metavar="NAME[@VERSION]")


def verify(args: Namespace, session: Session) -> int:
    """Have the server verify every content of a version, and its files in caches that are directories of its machine.
    Exit code 1 if one is missing or damaged."""
    from controlplane.cli.dataset_sync import fetch_manifest

    version = find_version(session, args.version)
    manifest = fetch_manifest(session, f"versions/{version['id']}", version["manifest"])
    total: Row = {"files": 0, "contents": 0, "size_bytes": 0, "missing": [], "damaged": []}
    repair = ""
    # Absent from servers of earlier versions.
    caches: dict[str, set[str]] = {"damaged_caches": set(), "unread_caches": set()}
    for start, count in _spans(list(manifest.sizes)):
        found = session.client.post(f"versions/{version['id']}/verify", {}, {"start": start, "count": count})
        for key in total:
            total[key] += found[key]
        repair = repair or found["repair"]
        for key, locations in caches.items():
            locations.update(found.get(key, ()))
    total |= {"is_intact": not (total["missing"] or total["damaged"]), "repair": repair}
    total |= {key: sorted(locations) for key, locations in caches.items()}
    session.output.object(total, _verified(version_name(version), total))
    return DONE if total["is_intact"] and not total["damaged_caches"] else FAILED


def _verified(name: str, total: Row) -> str:
    """Return the result of a verification in words. `total`: as REST, with the sums of all requests."""
    damaged, unread = total["damaged_caches"], total["unread_caches"]
    if total["is_intact"]:
        verb, where = "is" if total["files"] == 1 else "are", " in the lake" if damaged or unread else ""
        lines = [f"{name}: {formats.counted_files(total['files'])} {verb} intact{where}"]
    else:
        counts = f"{len(total['damaged'])} damaged and {len(total['missing'])} missing"
        lines = [f"{name}: of its contents {counts}; store them again: {total['repair']}"]
    for location in damaged:
        again = f"yard dataset cache {name} --location {location}"
        lines.append(f"its cache at {location} has damaged files; replace them: {again}")
    lines += [
        f"its cache at {location} was not read: the control plane cannot read it there" for location in unread
    ]
    return "\n".join(lines)


def _spans(sizes: list[int]) -> list[tuple[int, int]]:
    """Return (first index, count) of spans of consecutive files, each to be verified by one request. `sizes`: of all
    files, in bytes."""
    spans: list[tuple[int, int]] = []
    start = size = 0
    for place, one in enumerate(sizes):
        if place > start and (place - start >= VERIFIED_AT_ONCE or size + one > VERIFIED_BYTES):
            spans.append((start, place - start))
            start, size = place, 0
        size += one
    return [*spans, (start, len(sizes) - start)] if sizes else []
