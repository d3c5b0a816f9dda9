"""REST views of code trees: list missing files, upload them, create the tree.

Bodies come through controlplane.http.upload_bridge (see datasets.api.uploads): views get them as files.
"""

from base64 import b64decode
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponseBase, StreamingHttpResponse

from controlplane import fields
from controlplane.access import NotVisible, project_for
from controlplane.api import query
from controlplane.api.bodies import BodyField, text_field
from controlplane.api.json_schema import BOOLEAN, STRING, listed, record, ref
from controlplane.api.operations import DRY_RUN, Answer, ApiView, Call, operation
from controlplane.api.paging import Filter, Listing, paged
from controlplane.api.parsers import StrictJSONParser
from controlplane.api.problems import Problem
from controlplane.fields import Refused
from controlplane.models import Project, Role
from datasets.actions.code import begin_upload, commit_tree, receive_files, uploaded_files
from datasets.api.contents import BytesParser
from datasets.api.schemas import CODE_TREE
from datasets.code_archive import write_archive
from datasets.code_manifest import (
    EXECUTABLE,
    FILES_MOST,
    LINK,
    PATH_MOST_BYTES,
    Entry,
    file_entry,
    link_entry,
)
from datasets.code_store import ContentCorrupt, ProjectCode
from datasets.models import CodeTree
from datasets.queries.code import SCHEME, code_of, digest_of, find_tree, tree_detail, tree_shape

MANIFEST_MOST_BYTES = 8 << 20
LISTED_MOST = 1000
_BASE64 = {"type": "string", "contentEncoding": "base64"}
TAR = "application/x-tar"


class ManifestParser(StrictJSONParser):
    """DRF parser for JSON bodies of up to the size of a long file list."""

    most_bytes = MANIFEST_MOST_BYTES


class ArchiveParser(BytesParser):
    """DRF parser for tar bodies, which passes the body on unparsed."""

    media_type = TAR


def _entry(value: Any) -> Entry:
    """Return the entry described by {"path", "size", "hash", "executable"?} or {"path", "link"}. Raises Refused for
    any other object."""
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise Refused("not_an_entry", 'A file is {"path": "train.py", "size": 120, "hash": "<sha256>"}.')
    if "link" in value:
        if set(value) != {"path", "link"}:
            raise Refused("not_an_entry", 'A symbolic link is {"path": "data", "link": "../data"}.')
        return link_entry(value["path"], fields.inside(fields.text(PATH_MOST_BYTES), value["link"], "/link"))
    if not {"path", "size", "hash"} <= set(value) <= {"path", "size", "hash", "executable"}:
        raise Refused("not_an_entry", "A file has path, size, hash and, optionally, executable.")
    size, sha256 = value["size"], value["hash"]
    # Not isinstance: JSON's true is an int in Python.
    if type(size) is not int or not isinstance(sha256, str):
        raise Refused("not_an_entry", "A file's size is a whole number, and its hash a string.")
    is_executable = fields.inside(fields.switch, value.get("executable", False), "/executable")
    return file_entry(value["path"], size, sha256, is_executable=is_executable)


def _content(value: Any) -> bytes:
    try:
        return b64decode(value, validate=True)
    except (TypeError, ValueError) as error:
        raise Refused("not_base64", "Give the content of a file in base64.") from error


def _digest(value: Any) -> str:
    digest = digest_of(value) if isinstance(value, str) else None
    if digest is None:
        raise Refused("not_a_tree", "A tree is named sha256: and 64 lower-case hexadecimal digits.")
    return digest


BEGIN = {
    "files": BodyField(
        fields.listed(_entry, FILES_MOST),
        {**listed(ref("CodeEntry")), "maxItems": FILES_MOST},
        is_required=True,
    ),
    "parent": BodyField(
        _digest, {**STRING, "description": "A tree of the project whose other files are kept."}
    ),
    "removed": BodyField(
        fields.listed(fields.text(PATH_MOST_BYTES), FILES_MOST),
        {**listed(STRING), "maxItems": FILES_MOST, "description": "Paths of the parent that are not kept."},
    ),
    "contents": BodyField(
        fields.listed(_content, FILES_MOST),
        {
            **listed(_BASE64),
            "maxItems": FILES_MOST,
            "description": "Contents of `files` that need not be sent later.",
        },
    ),
}
_name = fields.text(255)
COMMIT = {
    "commit": text_field(64),
    "branch": BodyField(_name, {**STRING, "maxLength": 255}),
    "is_dirty": BodyField(fields.switch, BOOLEAN),
    "diff": BodyField(fields.text(1 << 20), STRING),
    "repository": text_field(500),
}
TREES = Listing(
    CODE_TREE,
    {"used_at": ("used_at", "id"), "created_at": ("created_at", "id")},
    "-created_at",
    {"commit": Filter("commit__in", query.texts("Of these commits."))},
)


class ProjectCodeTrees(ApiView):
    """The code trees of a project. An upload begins with a list of files; the answer names those to send."""

    parser_classes = [ManifestParser]

    @TREES.operation("List a project's code trees", "CodeTree")
    def get(self, call: Call, name: str) -> Answer:
        rows = CodeTree.objects.filter(project=project_for(call.actor, name))
        return paged(call, rows, TREES, fetch=_fetch, shape=_shape)

    @operation(
        "Begin the upload of a tree by sending its list of files, or what differs from a tree that is known",
        answer=ref("CodeUpload"),
        body=BEGIN,
        query={"dry_run": DRY_RUN},
        is_remembered=False,
    )
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.MEMBER)
        changes = {name: value for name, value in call.body.items() if name != "files"}
        digest, missing = begin_upload(project, call.body["files"], **changes, is_dry_run=call.is_dry_run)
        return _upload(digest, missing)


class ProjectCodeTree(ApiView):
    """A code tree, by its hash."""

    @operation(
        "Show a code tree, with the requested commit or that of its last upload",
        answer=ref("CodeTree"),
        query={"commit": query.text("Under this commit.")},
    )
    def get(self, call: Call, name: str, tree: str) -> Answer:
        project = project_for(call.actor, name)
        shown = tree_detail(_tree(project, tree, call.query.get("commit")))
        return Answer(shown, revision=shown)


class CodeFiles(ApiView):
    """The files of a code tree, in the order of their paths."""

    @operation(
        "List the files of a code tree",
        answer=record("Sorted by path.", results=listed(ref("CodeEntry")), has_more=BOOLEAN),
        query={
            "after": query.text("Continue after this path."),
            "limit": query.whole(1, LISTED_MOST, "Maximum number of results.", default=100),
        },
    )
    def get(self, call: Call, name: str, tree: str) -> Answer:
        project = project_for(call.actor, name)
        store, limit = code_of(project), call.query["limit"]
        entries = store.entries(_tree(project, tree).digest)
        start = bisect_right(entries, (call.query["after"] or "").encode(), key=_order)
        shown = [_entry_shape(store, entry) for entry in entries[start : start + limit]]
        return Answer({"results": shown, "has_more": len(entries) > start + limit})


class CodeContent(ApiView):
    """Upload of files of a tree whose upload has begun."""

    parser_classes = [ArchiveParser]

    @operation(
        "Send files of a tree whose upload has begun, as a tar of plain files named by their hash",
        answer=ref("CodeUpload"),
        body_is={"type": "string", "format": "binary"},
        query={"dry_run": DRY_RUN},
        takes=TAR,
        is_remembered=False,
    )
    def put(self, call: Call, name: str, tree: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.MEMBER)
        digest = tree_digest(tree)
        # DRF gives an empty dict for a request without a body.
        archive: Any = call.request.data or BytesIO()
        return _upload(digest, receive_files(project, digest, archive, is_dry_run=call.is_dry_run))


def _uploaded_files(call: Call, name: str, tree: str) -> tuple[Entry, ...]:
    return uploaded_files(project_for(call.actor, name, needed=Role.MEMBER), tree_digest(tree))


class CodeCommit(ApiView):
    """Completion of an upload: jobs can use the tree afterwards."""

    @operation(
        "Complete a tree whose files have all been sent, so that jobs can run it",
        answer=ref("CodeTree"),
        status=201,
        body=COMMIT,
        # In the transaction, all writers would wait for the disk.
        before=_uploaded_files,
    )
    def post(self, call: Call, name: str, tree: str) -> Answer:
        project, files = project_for(call.actor, name, needed=Role.MEMBER), call.prepared
        row = commit_tree(project, tree_digest(tree), files, call.body, actor=call.actor)
        return Answer(tree_detail(row), 201)


class CodeArchive(ApiView):
    """A tree as a tar archive."""

    @operation(
        "Download a code tree as a tar archive", answer={"type": "string", "format": "binary"}, gives=TAR
    )
    def get(self, call: Call, name: str, tree: str) -> HttpResponseBase:
        project = project_for(call.actor, name)
        return archive_response(project, _tree(project, tree).digest)


def tree_digest(tree: str) -> str:
    """Return the hexadecimal digits of a tree's name in a URL. Raises NotVisible if it is malformed."""
    digest = digest_of(tree)
    if digest is None:
        raise NotVisible("A code tree is named sha256: and 64 hexadecimal digits.")
    return digest


def archive_response(project: Project, digest: str) -> HttpResponseBase:
    """Return a streamed response with the tree as a tar archive. Raises FileNotFoundError if the tree is not
    complete."""
    store = code_of(project)
    body = write_archive(store.entries(digest), store.pieces)
    named = {"Content-Disposition": f'attachment; filename="code-{digest[:12]}.tar"'}
    return StreamingHttpResponse(body, content_type=TAR, headers=named)


def _order(entry: Entry) -> bytes:
    # As `checked` sorts them; an empty `after` is before all.
    return entry.path.encode()


def _entry_shape(store: ProjectCode, entry: Entry) -> dict[str, Any]:
    if entry.kind == LINK:
        try:
            target = b"".join(store.pieces(entry)).decode(errors="backslashreplace")
        except ContentCorrupt as error:
            raise Problem(409, "content_damaged", str(error)) from error
        return {"path": entry.path, "link": target}
    about = {"path": entry.path, "size": entry.size, "hash": entry.sha256}
    return about | ({"executable": True} if entry.kind == EXECUTABLE else {})


def _upload(digest: str, missing: Mapping[str, int]) -> Answer:
    return Answer({"tree": SCHEME + digest, "missing": list(missing)})


def _tree(project: Project, tree: str, commit: str | None = None) -> CodeTree:
    row = find_tree(project, tree_digest(tree), commit)
    if row is None:
        raise NotVisible(f"{project.name} has no such code tree.")
    return row


def _fetch(rows: QuerySet[CodeTree]) -> list[CodeTree]:
    # A diff has up to 1 MiB, and lists do not show it.
    return list(rows.defer("diff"))


def _shape(rows: Sequence[CodeTree]) -> list[dict[str, Any]]:
    return [tree_shape(row) for row in rows]
