"""`yard dataset ...`: datasets, their versions, and their files."""

from __future__ import annotations

import os
import re
from argparse import BooleanOptionalAction, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controlplane.cli import formats
from controlplane.cli.client import segment
from controlplane.cli.confirmation import add_yes, delete_confirmed
from controlplane.cli.errors import NOT_FOUND, USAGE, ApiError, CliError, require_changes
from controlplane.cli.parsing import Parser, add_flag, directory_path, given, positive_number
from controlplane.cli.session import Session
from controlplane.cli.tables import AGE, FILES, ID, Column, Row
from controlplane.unsafe_text import visible

if TYPE_CHECKING:
    from controlplane.cli.dataset_sync import Binding
    from datasets.ingest.engine import Synced
    from datasets.ingest.listing import Listing

_NAMED = re.compile(r"(?P<project>[^/@]+/)?(?P<name>[^/@]+)(?:@(?P<version>[^/@]+)(?:/(?P<subset>[^/@]+))?)?")
LATEST = "latest"
SKIPPED_SHOWN = 20


def _size(row: Row) -> str:
    return formats.size(row["size_bytes"])


DATASET_COLUMNS = (
    Column("NAME", lambda row: row["name"]),
    Column("PROJECT", lambda row: row["project"]),
    Column("LATEST", lambda row: row["latest"] or "none", is_number=True),
    FILES,
    Column("SIZE", _size, is_number=True),
    Column("UPDATED", lambda row: formats.age(row["updated_at"])),
    Column("SHARED", lambda row: "yes" if row["is_shared"] else "no"),
    Column("DESCRIPTION", lambda row: row["description"], is_wide=True),
    ID,
)
VERSION_COLUMNS = (
    Column("VERSION", lambda row: row["number"], is_number=True),
    FILES,
    Column("SIZE", _size, is_number=True),
    Column("ADDED", lambda row: f"{row['files_added']:,}", is_number=True),
    Column("CHANGED", lambda row: f"{row['files_changed']:,}", is_number=True),
    Column("REMOVED", lambda row: f"{row['files_removed']:,}", is_number=True),
    Column("AUTHOR", lambda row: row["author"]),
    AGE,
    Column("TAGS", lambda row: ", ".join(row["tags"])),
    Column("MESSAGE", lambda row: row["message"]),
    Column("MANIFEST", lambda row: row["manifest"], is_wide=True),
)
FILE_COLUMNS = (
    Column("NAME", lambda row: row["name"] + ("/" if row["kind"] == "directory" else "")),
    Column("KIND", lambda row: row["kind"]),
    FILES,
    Column("SIZE", _size, is_number=True),
    Column("SHA256", lambda row: row["sha256"] or "", is_wide=True),
)


def list_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset list", "yard dataset list -A"]
    add_flag(parser, "-A", "--all-projects", about="of every project, and shared ones")


def list_(args: Namespace, session: Session) -> None:
    """List the datasets of the project, or with -A all that the user may see."""
    path = "datasets" if args.all_projects else f"{session.project_path}/datasets"
    session.show_list(path, DATASET_COLUMNS)


def init_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset init chest-xray", "yard dataset init chest-xray /data/xray --shared"]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument(
        "directory",
        type=directory_path,
        metavar="DIR",
        nargs="?",
        help="the directory with its files; default: the current one, unless it belongs to a dataset already",
    )
    parser.add_argument("--description", metavar="TEXT", default="")
    add_flag(parser, "--shared", about="every signed-in user may read it")


def init(args: Namespace, session: Session) -> None:
    """Create an empty dataset, and remember on this machine that the directory belongs to it. Raise CliError (3) if
    there is no such directory."""
    from controlplane.cli.dataset_sync import Binding

    directory = args.directory or "."
    if not os.path.isdir(directory):
        what = "is not a directory" if os.path.exists(directory) else "does not exist"
        raise CliError(f"{directory} {what}", NOT_FOUND)
    body = {"name": args.name, "description": args.description, "is_shared": args.shared}
    dataset = session.client.post(f"{session.project_path}/datasets", body)
    binding = Binding(session, Path(directory))
    # Not changed unasked: the next sync would put the directory's files into another dataset than before.
    if args.directory or _visible(session, binding.dataset()) is None:
        binding.remember(dataset["id"])
        source = directory
    else:
        source = f"DIR --name {args.name}"
    session.output.object(dataset, f"dataset {args.name} created; fill it with: yard dataset sync {source}")


def _visible(session: Session, dataset: str) -> Row | None:
    """Return the dataset with this id; None for "", and if it does not exist or the user may not see it."""
    try:
        return session.get(f"datasets/{dataset}") if dataset else None
    except ApiError as error:
        if error.status != 404:
            raise
        return None


def sync_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard dataset sync .",
        "yard dataset sync /data/xray --name chest-xray -m 'second labelling'",
    ]
    parser.add_argument("directory", type=directory_path, metavar="DIR", nargs="?", default=".")
    parser.add_argument(
        "--name", metavar="NAME", help="the dataset; default: the one of init or the last sync"
    )
    parser.add_argument("-m", "--message", metavar="TEXT", default="", help="what this version is")
    add_flag(parser, "--full", about="read every file, including unchanged ones")
    add_flag(
        parser, "--link", about="large files become read-only hard links of the lake's, if it is on this disk"
    )


def sync(args: Namespace, session: Session) -> None:
    """Create a version from the files of a directory. Only changed files are read (with --full all), and only contents
    that the server lacks are sent. Nothing is created if nothing changed."""
    from datasets.ingest.listing import Listing

    # Begun before the other imports and the requests, which then cost no time.
    with Listing(os.fsencode(Path(args.directory).resolve())) as listing:
        from controlplane.cli.dataset_sync import Binding
        from datasets.ingest.reasons import in_words

        binding = Binding(session, Path(args.directory))
        dataset, newest, found = _send(args, session, listing, binding)
    for skipped in found.skipped[:SKIPPED_SHOWN]:
        path = skipped.path.decode(errors="backslashreplace")
        session.output.say(f"left out {visible(path)}: {in_words(skipped.reason)}")
    if len(found.skipped) > SKIPPED_SHOWN:
        session.output.say(f"left out {len(found.skipped) - SKIPPED_SHOWN:,} more")
    if found.manifest is None:
        assert newest is not None, "nothing changed since a version"
        binding.saw(dataset["id"], newest["number"])
        session.output.object(newest, f"{dataset['name']}@{newest['number']}: nothing changed")
        return
    body = {"manifest": found.version, "parent": dataset["latest"], "message": args.message}
    version = session.client.post(f"datasets/{dataset['id']}/versions", body)
    session.output.object(version, _made(version, dataset))
    _name_unseen(session, dataset, version, binding.seen(dataset["id"]))
    binding.saw(dataset["id"], version["number"])


def _name_unseen(session: Session, dataset: Row, version: Row, seen: int) -> None:
    """Print which versions the new one undoes because the directory, last at version `seen`, was never synced to or
    cloned from them; if `seen` is 0, not known, how many files of the newest one it replaces or lacks."""
    newest, name, number = dataset["latest"], dataset["name"], version["number"]
    if not seen < newest < number:
        return
    if seen:
        which = f"version {newest}" if newest == seen + 1 else f"versions {seen + 1} to {newest}"
        words = (
            f"this directory was last at version {seen}: {name}@{number} undoes what {which} changed, except where"
            " the directory has it too"
        )
        shown = f"{seen} {newest}"
    else:
        lost = version["files_changed"] + version["files_removed"]
        if not lost:
            return
        words = f"this directory was never at version {newest}: {name}@{number} replaces or lacks {lost:,} of its files"
        shown = f"{newest} {number}"
    session.output.say(words)
    session.output.say(f"  see: yard dataset diff {name} {shown} -p {dataset['project']}")


def _send(
    args: Namespace, session: Session, listing: Listing, binding: Binding
) -> tuple[Row, Row | None, Synced]:
    """Send the contents of a directory that the server lacks. Return its dataset, the newest version before (None if
    there is none) and the result."""
    from controlplane.cli.dataset_sync import LINKS, send_directory, without_collections

    dataset = _dataset_of(session, binding, args.name)
    newest = session.get(f"versions/{dataset['latest_id']}") if dataset["latest"] else None
    with without_collections():
        found = send_directory(
            session,
            dataset,
            binding,
            listing=listing,
            newest=newest["manifest"] if newest else "",
            is_full=args.full,
            adopt=LINKS if args.link else "reflink",
        )
    binding.remember(dataset["id"])
    return dataset, newest, found


def _made(version: Row, dataset: Row) -> str:
    if version["number"] == dataset["latest"]:
        return f"{dataset['name']}@{version['number']}: nothing changed"
    return (
        f"{dataset['name']}@{version['number']}: {formats.counted_files(version['files'])},"
        f" {_size(version)};"
        f" {version['files_added']:,} added, {version['files_changed']:,} changed,"
        f" {version['files_removed']:,} removed"
    )


def _dataset_of(session: Session, binding: Any, name: str | None) -> Row:
    if name:
        return find_dataset(session, name)
    known = binding.dataset()
    if (dataset := _visible(session, known)) is not None:
        return dataset
    hint = "name it once: yard dataset sync DIR --name NAME, after: yard dataset init NAME"
    if known:
        gone = f"the dataset that {binding.directory} belongs to was deleted, or you may not see it"
        raise CliError(gone, NOT_FOUND, hint)
    raise CliError(f"it is not known which dataset {binding.directory} belongs to", USAGE, hint)


def versions_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset versions chest-xray"]
    parser.add_argument("name", metavar="NAME")


def versions(args: Namespace, session: Session) -> None:
    """List a dataset's versions, newest first."""
    dataset = find_dataset(session, args.name)
    session.show_list(f"datasets/{dataset['id']}/versions", VERSION_COLUMNS)


def files_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset files chest-xray", "yard dataset files chest-xray@3 images/train"]
    parser.add_argument("version", metavar="NAME[@VERSION[/SUBSET]]")
    parser.add_argument("directory", metavar="PATH", nargs="?", default="")
    parser.add_argument(
        "--limit", type=positive_number, metavar="N", default=1000, help="maximum number of entries"
    )


def files(args: Namespace, session: Session) -> None:
    """List one directory of a version, at most --limit entries."""
    version = find_version(session, args.version)
    rows: list[Row] = []
    page: Row = {"has_more": True}
    while page["has_more"] and len(rows) < args.limit:
        page = session.get(
            f"versions/{version['id']}/files",
            directory=args.directory.strip("/") or None,
            after=rows[-1]["name"] if rows else None,
            limit=min(1000, args.limit - len(rows)),
        )
        rows += page["results"]
    session.output.objects({**page, "results": rows}, FILE_COLUMNS)


def diff_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset diff chest-xray 3 4", "yard dataset diff chest-xray 3 latest -o json"]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("before", metavar="A", help="number or tag")
    parser.add_argument("after", metavar="B", help="number or tag")
    parser.add_argument(
        "--limit",
        type=positive_number,
        metavar="N",
        default=1000,
        help="maximum number of paths of each kind",
    )


def diff(args: Namespace, session: Session) -> None:
    """Print the files that were added, removed and changed between two versions, of each kind at most --limit and
    1,000, and how many there are."""
    dataset = find_dataset(session, args.name)
    before, after = (_version(session, dataset, name) for name in (args.before, args.after))
    found = session.get(f"versions/{after['id']}/diff", before=before["number"], limit=min(args.limit, 1000))
    if session.output.is_data:
        session.output.data(found)
        return
    for mark, sort in (("+", "added"), ("-", "removed"), ("~", "changed")):
        for path in found[sort]:
            session.output.line(f"{mark} {visible(path)}")
        if (more := found["counts"][sort] - len(found[sort])) > 0:
            session.output.line(f"{mark} and {more:,} more")
    counts = found["counts"]
    session.output.say(
        f"{counts['added']:,} added, {counts['removed']:,} removed, {counts['changed']:,} changed"
    )


def clone_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset clone chest-xray ./xray", "yard dataset clone chest-xray@3 ./xray-3"]
    parser.add_argument("version", metavar="NAME[@VERSION[/SUBSET]]")
    parser.add_argument("directory", type=directory_path, metavar="DIR")


def clone(args: Namespace, session: Session) -> None:
    """Write a version's files into a directory, which then belongs to the dataset, except for a subset. A repeat
    continues an interrupted clone."""
    from controlplane.cli.dataset_sync import Binding, fetch_version

    version, target = find_version(session, args.version), Path(args.directory)
    written = fetch_version(session, version, target)
    # Not remembered for subsets: a sync of a subset's directory would create a version without all other
    # files.
    if not version["subset"]:
        binding = Binding(session, target)
        binding.remember(version["dataset_id"])
        binding.saw(version["dataset_id"], version["number"])
    session.output.object(
        version,
        f"{version_name(version)}: {written:,} of {formats.counted_files(version['files'])} written to {target}",
    )


def tag_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset tag chest-xray@3 golden", "yard dataset tag chest-xray golden --remove"]
    parser.add_argument("version", metavar="NAME[@VERSION]")
    parser.add_argument("tag", metavar="TAG")
    add_flag(parser, "--remove", about="remove the tag; its version stays")


def tag(args: Namespace, session: Session) -> None:
    """Set a tag to a version, moving an existing tag, or with --remove delete it."""
    name, number, subset = named(args.version)
    if subset:
        raise CliError(f"{args.version!r} names a subset; only versions have tags", USAGE)
    dataset = find_dataset(session, name)
    path = f"datasets/{dataset['id']}/tags"
    if args.remove:
        session.client.delete(f"{path}/{segment(args.tag)}")
        session.output.say(f"tag {args.tag} removed")
        return
    version = session.client.post(path, {"name": args.tag, "version": number})
    session.output.object(version, f"{dataset['name']}@{version['number']} has the tag {args.tag}")


def edit_arguments(parser: Parser) -> None:
    parser.examples = [
        "yard dataset edit chest-xray --description 'Chest X-rays, second labelling'",
        "yard dataset edit chest-xray --shared",
    ]
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--description", metavar="TEXT", help='"" removes it')
    parser.add_argument(
        "--shared", action=BooleanOptionalAction, help="whether every signed-in user may read it (for owners)"
    )


def edit(args: Namespace, session: Session) -> None:
    """Change the description of a dataset, or who may read it."""
    changes = require_changes(
        given({"description": args.description, "is_shared": args.shared}), "dataset edit"
    )
    dataset = find_dataset(session, args.name)
    changed = session.client.patch(f"datasets/{dataset['id']}", changes)
    session.output.object(changed, f"dataset {changed['name']} changed")


def delete_arguments(parser: Parser) -> None:
    parser.examples = ["yard dataset delete chest-xray --yes"]
    parser.add_argument("name", metavar="NAME")
    add_yes(parser)


def delete(args: Namespace, session: Session) -> None:
    """Delete a dataset with all its versions. On a terminal the user must confirm, unless --yes is given; elsewhere
    raise CliError (2) without it."""
    dataset = find_dataset(session, args.name)
    lost = f"{args.name} has {dataset['latest']} versions; all of them would be deleted"
    delete_confirmed(args, session, "dataset", args.name, f"datasets/{dataset['id']}", lost=lost)


def find_dataset(session: Session, name: str) -> Row:
    """Return the dataset `NAME` of the project or `PROJECT/NAME`. Raise CliError if there is none that the user can
    see, or if the name has a version, because the command would affect all versions."""
    project, plain, version, _ = _parts(name)
    if version:
        raise CliError(
            f"{name!r} names a version; this is for whole datasets",
            USAGE,
            f"leave out @{name.partition('@')[2]}",
        )
    rows: list[Row] = session.get("datasets", name=plain, project=project or session.project, limit=1)[
        "results"
    ]
    if not rows:
        where = project or session.project
        raise CliError(
            f"{where} has no dataset {plain!r} that you can see", NOT_FOUND, "see: yard dataset list"
        )
    return rows[0]


def find_version(session: Session, text: str) -> Row:
    """Return the version that `text` names: NAME (the newest), NAME@NUMBER or NAME@TAG, or its subset with /SUBSET.
    Raise CliError if there is none or the text has another form."""
    name, version, subset = named(text)
    found = _version(session, find_dataset(session, name), version)
    if not subset:
        return found
    row: Row = session.get(f"versions/{found['id']}/subsets/{segment(subset)}")
    return row


def version_name(version: Row) -> str:
    """Return the name of a version, NAME@NUMBER, or of a subset, NAME@NUMBER/SUBSET."""
    subset = f"/{version['subset']}" if version["subset"] else ""
    return f"{version['dataset']}@{version['number']}{subset}"


def _version(session: Session, dataset: Row, name: str) -> Row:
    try:
        found: Row = session.get(f"datasets/{dataset['id']}/versions/{segment(name)}")
    except ApiError as error:
        if error.exit_code == NOT_FOUND and not dataset["latest"]:
            raise CliError(
                f"{dataset['name']} has no version yet", NOT_FOUND, "see: yard help dataset sync"
            ) from error
        raise
    return found


def named(text: str) -> tuple[str, str, str]:
    """Return the name of a version as ([PROJECT/]dataset, number or tag, subset), with LATEST for no version and
    "" for no subset. Raise CliError for another form."""
    project, name, version, subset = _parts(text)
    return (f"{project}/{name}" if project else name), version or LATEST, subset


def _parts(text: str) -> tuple[str, str, str, str]:
    match = _NAMED.fullmatch(text)
    if match is None:
        raise CliError(f"{text!r} is not [PROJECT/]NAME[@VERSION[/SUBSET]]", USAGE)
    project = (match["project"] or "").rstrip("/")
    return project, match["name"], match["version"] or "", match["subset"] or ""
