"""REST view from which the pod that fills a cache volume on Kubernetes downloads a version."""

import hmac
import re
from collections.abc import Iterator
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse, HttpResponseBase, StreamingHttpResponse

from controlplane.access import NotVisible
from controlplane.api import query
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.problems import Problem
from controlplane.config.service_tokens import cache_token
from datasets.api.contents import BINARY, stored_manifest
from datasets.manifests import Manifest
from datasets.models import Cache
from datasets.queries.lake import lake_of
from datasets.queries.volume_files import BYTES, PIECE_BYTES
from datasets.storage.base import ContentMissing, Lake

HEADER = "X-Trainyard-Cache-Token"
# Limit on the bytes of one request: several contents are held in memory; a single one is streamed.
PLACES_MOST, CONTENTS_MOST_BYTES = 5000, 16 << 20
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_RANGES = re.compile(rf"{_RANGE.pattern}(?:,{_RANGE.pattern})*")


class PodData(ApiView):
    """Contents for one cache. Authenticated by the cache's own token, valid while it is being filled."""

    authentication_classes = ()
    permission_classes = ()

    @operation(
        "Download the manifest of the version that a cache is filled with, or contents of it: each after its SHA-256,"
        " in any order",
        answer=BINARY,
        gives=BYTES,
        query={"places": query.text("Indexes of the wanted files in the manifest: 0-99,105.")},
    )
    def get(self, call: Call, cache_id: str) -> Answer | HttpResponseBase:
        cache = _cache_of(cache_id, call.request.headers.get(HEADER, ""))
        project = cache.version.dataset.project
        lake = lake_of(project)
        if not (places := call.query["places"]):
            return HttpResponse(lake.manifest(cache.version.manifest), content_type=BYTES)
        wanted = _wanted(stored_manifest(project, cache.version.manifest), places)
        # Once the response has begun, a missing content could only cut it off.
        if lake.lacking(wanted):
            raise ContentMissing("A content of the version is not in the lake.")
        if len(wanted) == 1:
            [(digest, size)] = wanted.items()
            return StreamingHttpResponse(_pieces(lake, digest, size), content_type=BYTES)
        found = lake.read_many(sorted(wanted))
        return HttpResponse(b"".join(part for one in found for part in one), content_type=BYTES)


def _cache_of(cache_id: str, token: str) -> Cache:
    """Return the cache (by id) that a pod with this token fills. Raises NotVisible for a wrong id or token and
    for a cache that is not being filled, with the same message for each."""
    cache = None
    # Before the id is read or looked up, so that a request without a token costs no query.
    if hmac.compare_digest(
        token.encode(errors="replace"), cache_token(settings.SECRET_KEY, cache_id).encode()
    ):
        rows = Cache.objects.filter(pk=UUID(cache_id), state=Cache.FILLING)
        cache = rows.select_related("version__dataset__project").first()
    if cache is None:
        raise NotVisible("There is no cache being filled that has this token.")
    return cache


def _wanted(manifest: Manifest, text: str) -> dict[bytes, int]:
    """Return digest -> size of the contents that `text` requests, such as "0-99,105" (indexes of files). Raises
    Problem (400) if it is malformed, exceeds the limits or names a file that the manifest lacks."""
    ranges = [(int(first), int(last or first)) for first, last in _RANGE.findall(text)]
    if any(last < first for first, last in ranges):
        raise Problem(400, "bad_places", "A range ends before it begins.")
    if not _RANGES.fullmatch(text) or sum(last - first + 1 for first, last in ranges) > PLACES_MOST:
        raise Problem(400, "bad_places", f"Give up to {PLACES_MOST} places, such as 0-99,105.")
    if max(last for _, last in ranges) >= len(manifest):
        raise Problem(400, "bad_places", f"The version has {len(manifest)} files.")
    places = [place for first, last in ranges for place in range(first, last + 1)]
    wanted = {manifest.digest(place): manifest.sizes[place] for place in places}
    if len(wanted) > 1 and sum(wanted.values()) > CONTENTS_MOST_BYTES:
        detail = f"These files have more than {CONTENTS_MOST_BYTES} bytes; ask for fewer at a time."
        raise Problem(400, "too_many_bytes", detail)
    return wanted


def _pieces(lake: Lake, digest: bytes, size: int) -> Iterator[bytes]:
    yield digest
    for offset in range(0, size, PIECE_BYTES):
        yield lake.read(digest, offset, PIECE_BYTES)
