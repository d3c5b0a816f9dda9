"""`yard dataset subset`: named parts of a version."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.commands.datasets import find_version, version_name
from controlplane.cli.errors import NOT_FOUND, USAGE, CliError
from controlplane.cli.parsing import Parser, add_flag
from controlplane.cli.session import Session
from controlplane.cli.tables import AGE, FILES, Column, Row

SUBSET_COLUMNS = (
    Column("SUBSET", version_name),
    FILES,
    Column("SIZE", lambda row: formats.size(row["size_bytes"]), is_number=True),
    Column("SELECTED", lambda row: _selected(row["selection"])),
    Column("AUTHOR", lambda row: row["author"]),
    AGE,
    Column("MANIFEST", lambda row: row["manifest"], is_wide=True),
)


def subset_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard dataset subset chest-xray@3/train --include 'train/**' --exclude '*.txt'",
        "yard dataset subset chest-xray@golden/small --list small.txt",
        "yard dataset subset chest-xray@3/train --delete",
    ]
    parser.add_argument("subset", metavar="NAME@VERSION/SUBSET")
    parser.add_argument(
        "--include",
        metavar="PATTERN",
        action="append",
        default=[],
        help="files to take: * and ? within a name, **/ for any directories; may be repeated",
    )
    parser.add_argument(
        "--exclude", metavar="PATTERN", action="append", default=[], help="files to leave out"
    )
    parser.add_argument("--list", metavar="FILE", help="a file with one path a line; - for standard input")
    add_flag(parser, "--delete", about="delete the subset; its version stays")


def subset(args: Namespace, session: Session) -> None:
    """Save the matching files of a version as an immutable subset, which can be mounted and cached like a version.
    With --delete, delete a subset. Raise CliError (2) if no option selects files."""
    text, slash, name = args.subset.rpartition("/")
    if not slash or "@" not in text:
        raise CliError(f"{args.subset!r} is not NAME@VERSION/SUBSET", USAGE)
    version = find_version(session, text)
    path = f"versions/{version['id']}/subsets"
    if args.delete:
        deleted = session.client.delete(f"{path}/{segment(name)}")
        session.output.object(deleted, f"subset {version_name(deleted)} deleted")
        return
    if not (args.include or args.list):
        raise CliError("which files?", USAGE, "give --include PATTERN, or --list FILE")
    body = {"name": name, "include": args.include, "exclude": args.exclude, "paths": _listed(args.list)}
    saved = session.client.post(path, {field: value for field, value in body.items() if value})
    words = f"{version_name(saved)}: {saved['files']:,} of {formats.counted_files(version['files'])}, {_size(saved)}"
    session.output.object(saved, words)


def subsets_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset subsets chest-xray@3"]
    parser.add_argument("version", metavar="NAME[@VERSION]")


def subsets(args: Namespace, session: Session) -> None:
    """List the subsets of a dataset's version."""
    version = find_version(session, args.version)
    session.show_list(f"versions/{version['id']}/subsets", SUBSET_COLUMNS)


def _listed(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except OSError as error:
        raise CliError(f"{file} cannot be read: {error.strerror}", NOT_FOUND) from error
    except UnicodeDecodeError as error:
        raise CliError(f"{file} is not a text in UTF-8", USAGE) from error
    return [line for line in text.splitlines() if line]


def _size(row: Row) -> str:
    return formats.size(row["size_bytes"])


def _selected(selection: Row) -> str:
    count = selection["paths"]
    listed = [f"{count:,} path{'s' if count > 1 else ''}"] if count else []
    left_out = [f"not {pattern}" for pattern in selection["exclude"]]
    return ", ".join([*selection["include"], *listed, *left_out])
