"""Routes with large or slow bodies, and the limit on the bytes accepted from each caller."""

import re
from collections.abc import Mapping

from controlplane.access import Actor, project_for
from controlplane.api.errors import to_problem
from controlplane.live.asgi import Scope
from controlplane.live.client import Refused
from controlplane.live.identity import Identity
from controlplane.models import Role
from datasets.access import dataset_for, version_for
from datasets.actions.code import upload_room
from datasets.api import code, contents, subsets
from datasets.ingest.packs import PACK_MOST_BYTES
from datasets.manifests import DIGEST_BYTES

UPLOADS = re.compile(
    r"/api/v1/(?:projects/(?P<project>[^/]+)/code(?:/(?P<tree>[^/]+)/(?:content|archive))?"
    r"|datasets/(?P<dataset>[^/]+)/(?:content/(?P<content>[^/]+)(?:/[^/]+)?|versions)"
    r"|versions/(?P<version>[^/]+)/(?P<verb>files|diff|content|manifest|pack|verify|subsets))"
)
JSON_MOST_BYTES = 1 << 20
_CONTENT_MOST_BYTES = {
    "lacking": contents.DIGESTS_MOST * DIGEST_BYTES,
    "packs": PACK_MOST_BYTES,
    "parts": contents.PART_MOST_BYTES,
    "manifests": contents.MANIFEST_MOST_BYTES,
}


def admit_upload(scope: Scope, identity: Identity) -> int:
    """Return the largest body, in bytes, that a request to one of UPLOADS by this identity may have. Raises
    Refused with the status and code that the view itself would answer."""
    parts = UPLOADS.fullmatch(scope["path"])
    assert parts is not None, "only such requests come here"
    try:
        return _room(parts.groupdict(), identity.actor)
    except Exception as error:
        problem = to_problem(error)
        raise Refused(problem.status, problem.code, problem.detail) from error


def _room(parts: Mapping[str, str | None], actor: Actor) -> int:
    if parts["project"]:
        project, tree = project_for(actor, parts["project"], needed=Role.MEMBER), parts["tree"]
        return upload_room(project, code.tree_digest(tree)) if tree else code.MANIFEST_MOST_BYTES
    if parts["version"]:
        version_for(actor, parts["version"], needed=Role.MEMBER)
        return subsets.BODY_MOST_BYTES if parts["verb"] == "subsets" else JSON_MOST_BYTES
    dataset_for(actor, parts["dataset"] or "", needed=Role.MEMBER)
    return _CONTENT_MOST_BYTES.get(parts["content"] or "", JSON_MOST_BYTES)
