"""HTTP problems for what a lake refuses."""

from controlplane.api.problems import Problem
from datasets.storage.base import DISK_FULL, Blocked, ContentDamaged, ContentMissing

# HTTP statuses for codes of Blocked, 503 for the others: clients must distinguish a full disk from an outage, and a
# lake that removes old content is no fault.
_STATUSES = {DISK_FULL: 507, "in_use": 409}
_CHECK = "Check the version: yard dataset verify."


def _unavailable(error: Blocked) -> Problem:
    return Problem(_STATUSES.get(error.code, 503), error.code, error.detail, headers={"Retry-After": "30"})


TRANSLATIONS = (
    (Blocked, _unavailable),
    (ContentMissing, lambda error: Problem(409, "content_missing", f"{error} {_CHECK}")),
    (ContentDamaged, lambda error: Problem(409, "content_damaged", f"{error} {_CHECK}")),
)
