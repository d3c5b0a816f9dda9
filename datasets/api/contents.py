"""REST views of the contents of versions: list, download and upload. Bodies are bytes and are not copied."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain
from typing import Any
from urllib.parse import quote

from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse
from rest_framework.parsers import BaseParser

from controlplane.access import NotVisible
from controlplane.api import query
from controlplane.api.json_schema import BOOLEAN, INTEGER, STRING, Schema, listed, nullable, record, ref
from controlplane.api.operations import Answer, ApiView, Call, Method, operation
from controlplane.api.problems import Problem
from controlplane.api.query import Parameter
from controlplane.models import Project, Role
from datasets.access import dataset_for, version_for, visible_locations
from datasets.actions.cache_upkeep import verify_caches
from datasets.actions.datasets import keep_manifest
from datasets.ingest.nearby import folder_mark, machine_mark
from datasets.ingest.packs import PackInvalid, make_pack
from datasets.manifests import DIGEST_BYTES, Entry, Manifest, compare, split_digests
from datasets.models import DatasetVersion
from datasets.previews import media_type
from datasets.queries.caches import unread_at
from datasets.queries.datasets import child_shape, diff_shape, find_version, meant, meant_in, shown
from datasets.queries.lake import lake_folder, lake_of, manifest_named
from datasets.queries.registrations import repair_of
from datasets.queries.volume_files import BYTES, PIECE_BYTES
from datasets.storage.base import ContentDamaged, ContentMissing

BINARY: Schema = {"type": "string", "format": "binary"}
MANIFEST_MOST_BYTES = 256 << 20
# Limit on the contents named in one request.
DIGESTS_MOST = 5000
PART_MOST_BYTES = 16 << 20
CHILDREN_MOST, PATHS_MOST = 1000, 1000
# Limits on the bytes of one response, which is built in memory, and of one verification, for which the client waits.
PACK_OUT_BYTES, VERIFIED_BYTES = 64 << 20, 1 << 30
FILES = {
    "start": query.whole(0, 1 << 31, "Index of the first file in the manifest.", default=0),
    "count": query.whole(1, DIGESTS_MOST, "Files at most.", default=1000),
}
DIRECTORY = {
    "directory": query.text("The directory; by default the top."),
    "after": query.text("Continue after this name."),
    "limit": query.whole(1, CHILDREN_MOST, "Maximum number of results.", default=100),
}
LISTED = record("Sorted by name.", results=listed(ref("DatasetFile")), has_more=BOOLEAN)


def file_of(what: str) -> dict[str, Parameter]:
    """Return the query fields that name one file of a manifest. `what`: the kind of resource that has the
    manifest, for their descriptions."""
    return {
        "path": query.text(f"The file's path in the {what}."),
        "place": query.whole(0, 1 << 31, "The file's index in the manifest, instead of its path."),
    }


def pack_operation(what: str) -> Callable[[Method], Callable[..., HttpResponseBase]]:
    """Return `@operation` for a method that answers by `pack_response`. `what`: the kind, as "a version"."""
    about = f"Download the contents of files of {what} as a pack: at most 64 MiB"
    return operation(about, answer=BINARY, gives=BYTES, query=FILES)


class BytesParser(BaseParser):
    """DRF parser for binary bodies, which passes the body on unparsed."""

    media_type = BYTES

    def parse(
        self, stream: Any, media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        return stream


class Lacking(ApiView):
    """Which of the sent digests the lake lacks. The others are protected from garbage collection."""

    parser_classes = [BytesParser]

    @operation(
        "Return the contents that the lake lacks, as indexes into the list sent: SHA-256 digests of 32 bytes"
        " each, concatenated",
        answer=record("Places from 0.", lacking=listed(INTEGER)),
        body_is=BINARY,
        takes=BYTES,
        is_remembered=False,
    )
    def post(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        digests = _digests(_body(call))
        lacking = lake_of(dataset.project).keep(digests)
        return Answer({"lacking": [place for place, digest in enumerate(digests) if digest in lacking]})


class Nearby(ApiView):
    """The lake's folder, for a caller on the server's machine; null for others."""

    @operation(
        "Return the lake's folder to a caller on the server's machine",
        answer=record(
            "Null if the caller is elsewhere, or the lake is not a folder.",
            folder=nullable(STRING),
            mark=nullable(STRING),
        ),
        query={"machine": query.text("The caller's machine: SHA-256 of the format's name and the boot id.")},
    )
    def get(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        # Only processes of this machine can name it: others do not learn where the server keeps its files.
        if not (machine := machine_mark()) or call.query["machine"] != machine:
            return Answer({"folder": None, "mark": None})
        folder = lake_folder(dataset.project)
        return Answer({"folder": folder and str(folder), "mark": folder and folder_mark(str(folder))})


class Packs(ApiView):
    """Upload of small contents."""

    parser_classes = [BytesParser]

    @operation(
        "Send contents as a pack; each is checked against its digest",
        answer=record("Number of bytes received.", size_bytes=INTEGER),
        body_is=BINARY,
        takes=BYTES,
        is_remembered=False,
    )
    def put(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        pack = _body(call)
        try:
            lake_of(dataset.project).put_pack(memoryview(pack))
        except PackInvalid as error:
            raise Problem(400, "bad_pack", str(error)) from error
        return Answer({"size_bytes": len(pack)})


class Parts(ApiView):
    """Upload of a large content in parts."""

    parser_classes = [BytesParser]

    @operation(
        "Return how many bytes of a large content have arrived", answer=record("Bytes.", size_bytes=INTEGER)
    )
    def get(self, call: Call, dataset_id: str, sha256: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        return Answer({"size_bytes": lake_of(dataset.project).part_bytes(_digest(sha256))})

    @operation(
        "Send a part of a large content; the whole is checked against its digest",
        answer=record("Number of bytes received so far.", size_bytes=INTEGER),
        query={
            "offset": query.whole(0, query.BIGGEST, "Offset of the part in bytes.", default=0),
            "size": query.whole(0, query.BIGGEST, "Size of the whole content in bytes.", default=0),
        },
        body_is=BINARY,
        takes=BYTES,
        is_remembered=False,
    )
    def put(self, call: Call, dataset_id: str, sha256: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        part = memoryview(_body(call))
        try:
            arrived = lake_of(dataset.project).put_part(
                _digest(sha256), call.query["offset"], part, call.query["size"]
            )
        except ContentDamaged as error:
            detail = "The content arrived damaged, or changed while it was sent; send it again."
            raise Problem(400, "content_damaged", detail) from error
        return Answer({"size_bytes": arrived})


class Manifests(ApiView):
    """Upload of the list of files of a future version."""

    parser_classes = [BytesParser]

    @operation(
        "Send the manifest of a version whose contents were sent",
        answer=record(
            "The manifest's hash, and how many contents the lake lacks: with 0, it can be committed.",
            manifest=STRING,
            lacking=INTEGER,
        ),
        body_is=BINARY,
        takes=BYTES,
        is_remembered=False,
    )
    def put(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        manifest, lacking = keep_manifest(dataset, _body(call))
        return Answer({"manifest": manifest.hash, "lacking": lacking})


class VersionManifest(ApiView):
    """A version's encoded manifest: path, kind, size and SHA-256 of each file."""

    @operation("Download a version's manifest", answer=BINARY, gives=BYTES)
    def get(self, call: Call, version_id: str) -> HttpResponseBase:
        version = version_for(call.actor, version_id)
        return HttpResponse(lake_of(version.dataset.project).manifest(version.manifest), content_type=BYTES)


class VersionFiles(ApiView):
    """Entries of one directory of a version."""

    @operation("List a directory of a version", answer=LISTED, query=DIRECTORY)
    def get(self, call: Call, version_id: str) -> Answer:
        return listed_files(_manifest(version_for(call.actor, version_id)), call.query)


class VersionDiff(ApiView):
    """Differences between a version and another of its dataset, by default its parent."""

    @operation(
        "Compare a version with another of its dataset",
        answer=ref("DatasetDiff"),
        query={
            "before": query.whole(
                0, 1 << 31, "Number of the other version; 0 for an empty one. By default the parent."
            ),
            "limit": query.whole(0, PATHS_MOST, "Maximum number of paths of each kind.", default=100),
        },
    )
    def get(self, call: Call, version_id: str) -> Answer:
        after = version_for(call.actor, version_id)
        before = _other(after, call.query["before"])
        old = _manifest(before) if before else Manifest.empty()
        diff = compare(old, _manifest(after))
        return Answer(diff_shape(before.number if before else 0, after.number, diff, call.query["limit"]))


class VersionContent(ApiView):
    """The content of a file of a version, streamed."""

    @operation("Download a file of a version", answer=BINARY, gives=BYTES, query=file_of("version"))
    def get(self, call: Call, version_id: str) -> HttpResponseBase:
        version = version_for(call.actor, version_id)
        entry = entry_of(_manifest(version), call.query)
        return file_response(version.dataset.project, entry)


class VersionPack(ApiView):
    """Contents of some of a version's files, as a pack."""

    @pack_operation("a version")
    def get(self, call: Call, version_id: str) -> HttpResponseBase:
        version = version_for(call.actor, version_id)
        return pack_response(version.dataset.project, _manifest(version), call.query)


class VersionVerify(ApiView):
    """Check that the contents of some of a version's files are undamaged in the lake and in caches."""

    @operation(
        "Read and hash the contents of files of a version; damaged ones are moved away",
        answer=ref("DatasetVerification"),
        query=FILES,
        is_remembered=False,
    )
    def post(self, call: Call, version_id: str) -> Answer:
        version = version_for(call.actor, version_id, needed=Role.MEMBER)
        wanted = _within(_manifest(version), call.query, VERIFIED_BYTES)
        found = lake_of(version.dataset.project).verify(wanted)
        # After the lake: the files of a cache may share bytes with it.
        caches = verify_caches(wanted)
        unread = unread_at(version, visible_locations(call.actor), caches.unread)
        missing, damaged = [one.hex() for one in found.missing], [one.hex() for one in found.quarantined]
        return Answer(
            {
                "files": len(wanted),
                "contents": found.contents,
                "size_bytes": found.size_bytes,
                "missing": missing,
                "damaged": damaged,
                "damaged_caches": [
                    one.location.name for one in caches.failed if one.version_id == version.pk
                ],
                "unread_caches": unread,
                "is_intact": not (missing or damaged),
                "repair": repair_of(version) if missing or damaged else "",
            }
        )


def _body(call: Call) -> bytes:
    stream: Any = call.request.data
    # DRF gives an empty dict for a request without a body.
    return b"" if isinstance(stream, dict) else bytes(stream.read())


def _digests(body: bytes) -> list[bytes]:
    if len(body) % DIGEST_BYTES or len(body) > DIGESTS_MOST * DIGEST_BYTES:
        detail = f"Send at most {DIGESTS_MOST} digests of {DIGEST_BYTES} bytes each."
        raise Problem(400, "bad_digests", detail)
    return split_digests(body)


def _digest(sha256: str) -> bytes:
    if len(sha256) != 2 * DIGEST_BYTES or not set(sha256) <= set("0123456789abcdef"):
        raise NotVisible("A content is named by the 64 lower-case hexadecimal digits of its SHA-256.")
    return bytes.fromhex(sha256)


def listed_files(manifest: Manifest, asked: Mapping[str, Any]) -> Answer:
    """Return the response with the entries of one directory of a manifest. `asked`: `directory`, `after` (a name)
    and `limit`. Raises NotVisible if there is no such directory."""
    directory, after = meant_in(manifest, asked["directory"] or "", asked["after"] or "")
    children = manifest.children(directory, after, asked["limit"] + 1)
    if directory and not children and not manifest.children(directory, limit=1):
        what = "is a file" if manifest.find(directory) else "is not there"
        raise NotVisible(f"{shown(directory)[:80]!r} {what}, and no directory to list.")
    rows = [child_shape(directory, child) for child in children[: asked["limit"]]]
    return Answer({"results": rows, "has_more": len(children) > asked["limit"]})


def pack_response(project: Project, manifest: Manifest, asked: Mapping[str, int]) -> HttpResponseBase:
    """Return a response with the contents of files as a pack: `count` files of the manifest from index `start`,
    both in `asked`. Raises Problem (400) if they exceed PACK_OUT_BYTES."""
    lake, wanted = lake_of(project), _within(manifest, asked, PACK_OUT_BYTES)
    # A client wrote the sizes in the manifest.
    _refuse_more(sum(one.size_bytes for one in lake.locate(wanted)), PACK_OUT_BYTES)
    contents = list(lake.read_many(wanted))
    return HttpResponse(make_pack(contents), content_type=BYTES)


def _manifest(version: DatasetVersion) -> Manifest:
    return stored_manifest(version.dataset.project, version.manifest, version)


def stored_manifest(project: Project, name: str, version: DatasetVersion | None = None) -> Manifest:
    """Return the manifest with the hash `name` of the project's lake. Raises Problem (409) if it is missing or
    damaged. `version`: the one whose it is, for the words that say what stores it again."""
    try:
        return manifest_named(project, name)
    except ContentMissing as error:
        repair = f"Store it again: {repair_of(version)}" if version else "Restore the lake from its backup"
        raise Problem(409, "manifest_missing", f"{error} {repair}.") from error


def _other(version: DatasetVersion, number: int | None) -> DatasetVersion | None:
    if number is None:
        return version.parent
    if number == 0:
        return None
    found = find_version(version.dataset, str(number))
    if found is None:
        raise NotVisible(f"{version.dataset.name} has no version {number}.")
    return found


def _within(manifest: Manifest, wanted: Mapping[str, int], most_bytes: int) -> list[bytes]:
    """Return the digests of the files that `wanted` names: `count` of them from index `start`. Raises Problem
    (400) if they have more than `most_bytes` together."""
    start, end = wanted["start"], min(len(manifest), wanted["start"] + wanted["count"])
    _refuse_more(sum(manifest.sizes[start:end]), most_bytes)
    return [manifest.digest(place) for place in range(start, end)]


def _refuse_more(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        detail = f"These files have more than {most_bytes} bytes; ask for fewer at a time."
        raise Problem(400, "too_many_bytes", detail)


def entry_of(manifest: Manifest, asked: Mapping[str, Any]) -> Entry:
    """Return the manifest entry that `asked` names by `path`, or by `place` (its index), which wins. Raises
    NotVisible if there is none."""
    path, place = asked["path"], asked["place"]
    if place is not None and place < len(manifest):
        return manifest.entry(place)
    entry = manifest.find(meant(path or "", manifest.has))
    if entry is None:
        raise NotVisible(f"There is no file {(path or '')[:200]!r} here.")
    return entry


def _verified(entry: Entry, pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a file. Raises ContentDamaged in place of the last one if they are not the file's."""
    hashed, size, last = sha256(), 0, None
    for piece in pieces:
        if last is not None:
            # The content has ended, whatever size the manifest of a client says.
            if not piece:
                break
            yield last
        hashed.update(piece)
        size, last = size + len(piece), piece
    if last is None or size != entry.size_bytes or hashed.digest() != entry.digest:
        raise ContentDamaged(entry.digest)
    yield last


def file_response(project: Project, entry: Entry) -> HttpResponseBase:
    """Return a streamed response with one file. Images without scripts (datasets.previews) are shown inline, other
    files are downloaded. Raises ContentMissing and Blocked as Lake.read, ContentDamaged for a damaged file of one
    piece; the response with a larger one ends before its last piece."""
    lake = lake_of(project)
    name = entry.path.rpartition(b"/")[2].decode("utf-8", "replace")
    media = media_type(name)
    starts = range(0, max(1, entry.size_bytes), PIECE_BYTES)
    pieces = _verified(entry, (lake.read(entry.digest, at, PIECE_BYTES) for at in starts))
    # Read the first piece before the response starts: an unreachable lake then gives an error status with its
    # reason, not a truncated file.
    response = StreamingHttpResponse(chain([next(pieces)], pieces), content_type=media or BYTES)
    response.headers["Content-Length"] = str(entry.size_bytes)
    # Users' files must not run scripts in our origin: everything but plain images is sent as a download.
    kind = "inline" if media else "attachment"
    response.headers["Content-Disposition"] = f"{kind}; filename*=UTF-8''{quote(name)}"
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'"
    response.headers["Cache-Control"] = "private, max-age=3600, immutable"
    return response
