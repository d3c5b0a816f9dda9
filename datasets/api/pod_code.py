"""REST view from which pods download their job's code, for clusters that cannot read the code store."""

import hmac
import logging
from collections.abc import Iterator
from uuid import UUID

from django.conf import settings
from django.http import HttpResponseBase, StreamingHttpResponse

from controlplane.access import NotVisible
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.problems import Problem
from controlplane.config.service_tokens import code_token
from datasets.api.code import TAR
from datasets.code_archive import write_archive
from datasets.code_manifest import Entry
from datasets.code_store import ContentCorrupt, ProjectCode
from datasets.queries.code import code_of, digest_of
from jobs.models import Job

logger = logging.getLogger(__name__)
HEADER = "X-Trainyard-Code-Token"


class PodCode(ApiView):
    """The code tree of one attempt. Authenticated by the attempt's own token, valid until the job has ended
    or has begun a later attempt."""

    authentication_classes = ()
    permission_classes = ()

    @operation(
        "Download a job's code, as its pods do with the token of their attempt",
        answer={"type": "string", "format": "binary"},
        gives=TAR,
    )
    def get(self, call: Call, job_id: str, attempt: str) -> Answer | HttpResponseBase:
        job = _job_of(job_id, attempt, call.request.headers.get(HEADER, ""))
        store, digest = code_of(job.project), digest_of(job.spec["code"]["tree"]) or ""
        try:
            entries = store.entries(digest)
        except FileNotFoundError:
            raise Problem(
                410, "code_missing", "The job's code is no longer stored; submit it again."
            ) from None
        return StreamingHttpResponse(_pieces(store, digest, entries), content_type=TAR)


def _job_of(job_id: str, attempt: str, token: str) -> Job:
    """Return the job whose attempt has this token. Raises NotVisible if there is none, with the same message for
    every cause."""
    job = None
    # Ten digits could exceed the column's 32 bits.
    if attempt.isdecimal() and len(attempt) < 10 and _is_token(token, job_id, int(attempt)):
        rows = Job.objects.filter(pk=UUID(job_id), attempt=int(attempt)).unfinished()
        job = rows.select_related("project").first()
    if job is None or not job.spec.get("code"):
        raise NotVisible("There is no unfinished job with code that has this attempt and token.")
    return job


def _is_token(token: str, job_id: str, attempt: int) -> bool:
    wanted = code_token(settings.SECRET_KEY, job_id, attempt)
    # As bytes, because `compare_digest` refuses texts that are not ASCII, and a header may hold any.
    return hmac.compare_digest(token.encode(errors="replace"), wanted.encode())


def _pieces(store: ProjectCode, digest: str, entries: tuple[Entry, ...]) -> Iterator[bytes]:
    """Yield the archive. Damaged content ends it early: the pod sees a wrong hash, and its next request gets
    410."""
    try:
        yield from write_archive(entries, store.pieces)
    except ContentCorrupt:
        logger.exception("code tree %s is damaged", digest)
        store.remove([digest])
