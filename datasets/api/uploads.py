"""Which requests have large bodies, and how much of one is received from whom."""

import re

from controlplane.access import project_for
from controlplane.api.errors import to_problem
from controlplane.live.asgi import Scope
from controlplane.live.client import Refused
from controlplane.live.identity import Identity
from controlplane.models import Role
from datasets.actions.code import upload_room
from datasets.api.code import MANIFEST_MOST_BYTES, tree_digest

UPLOADS = re.compile(r"/api/v1/projects/(?P<project>[^/]+)/code(?:/(?P<tree>[^/]+)/(?:content|archive))?")


def admit_upload(scope: Scope, identity: Identity) -> int:
    """Return how many bytes a request of UPLOADS may have: a list of files, or what is missing of a tree. Raises
    Refused, as the views refuse."""
    parts = UPLOADS.fullmatch(scope["path"])
    assert parts is not None, "only such requests come here"
    try:
        project = project_for(identity.actor, parts["project"], needed=Role.MEMBER)
        return upload_room(project, tree_digest(parts["tree"])) if parts["tree"] else MANIFEST_MOST_BYTES
    except Exception as error:
        problem = to_problem(error)
        raise Refused(problem.status, problem.code, problem.detail) from error
