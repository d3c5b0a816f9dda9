"""Which requests have large bodies, and how much of one is received from whom."""

import re
from urllib.parse import unquote

from controlplane.access import Actor, project_for
from controlplane.live.asgi import Scope
from controlplane.models import Role
from datasets.actions.code import upload_room
from datasets.api.code import MANIFEST_MOST_BYTES, tree_digest

UPLOADS = re.compile(r"/api/v1/projects/(?P<project>[^/]+)/code(?:/(?P<tree>[^/]+)/(?:content|archive))?")


def admit_upload(scope: Scope, actor: Actor) -> int:
    """Return how many bytes a request of UPLOADS may have: a list of files, or what is missing of a tree. Raises what
    the views raise."""
    parts = UPLOADS.fullmatch(scope["path"])
    assert parts is not None, "only such requests come here"
    project = project_for(actor, unquote(parts["project"]), needed=Role.MEMBER)
    return upload_room(project, tree_digest(parts["tree"])) if parts["tree"] else MANIFEST_MOST_BYTES
