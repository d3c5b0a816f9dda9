"""REST views of imports from git repositories: request a commit, then poll until the import is ready or
failed."""

from typing import Any

from controlplane.access import NotVisible, project_for, uuid_of
from controlplane.api.bodies import text_field
from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.models import Role
from datasets.actions.code_imports import request_import
from datasets.models import CodeImport
from datasets.queries.code import SCHEME

REQUEST = {
    "url": text_field(500, is_required=True),
    "ref": text_field(255),
}


class CodeImports(ApiView):
    """Requests to import a commit of a git repository, which a worker fetches."""

    @operation(
        "Fetch a commit of a git repository as a code tree",
        answer=ref("CodeImport"),
        status=202,
        body=REQUEST,
    )
    def post(self, call: Call, name: str) -> Answer:
        project = project_for(call.actor, name, needed=Role.MEMBER)
        row = request_import(project, call.body["url"], call.body.get("ref", "HEAD"), actor=call.actor)
        return Answer(import_shape(row), 202)


class CodeImportDetail(ApiView):
    """The state of an import: pending, ready with its tree, or failed."""

    @operation("Show an import of code: pending, ready with its tree, or failed", answer=ref("CodeImport"))
    def get(self, call: Call, name: str, import_id: str) -> Answer:
        project = project_for(call.actor, name)
        missing = NotVisible("There is no such import of code.")
        rows = CodeImport.objects.filter(project=project, pk=uuid_of(import_id, missing))
        row = rows.select_related("created_by").first()
        if row is None:
            raise missing
        shown = import_shape(row)
        return Answer(shown, revision=shown)


def import_shape(row: CodeImport) -> dict[str, Any]:
    """Return an import in REST form."""
    return {
        "id": str(row.pk),
        "url": row.url,
        "ref": row.ref,
        "state": row.state,
        "reason": {"code": row.reason, "message": row.message} if row.reason else None,
        "tree": SCHEME + row.digest if row.digest else None,
        "commit": row.commit,
        "created_by": row.created_by.username if row.created_by else "",
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }
