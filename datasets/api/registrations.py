"""REST views that create versions from directories of the control plane's machine."""

from controlplane import fields
from controlplane.access import NotVisible, uuid_of
from controlplane.api.bodies import BodyField, text_field
from controlplane.api.json_schema import STRING, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.models import Role
from datasets.access import dataset_for
from datasets.actions.registrations import register_directory
from datasets.models import DatasetRegistration
from datasets.queries.registrations import registration_shape

NEW = {
    "path": BodyField(fields.absolute_path, {**STRING, "maxLength": 4096}, is_required=True),
    "message": text_field(500),
}


class Registrations(ApiView):
    """Requests to create a version from a directory that an admin has allowed; a worker reads it."""

    @operation(
        "Create a version from a directory that an admin allowed, without an upload",
        answer=ref("DatasetRegistration"),
        status=202,
        body=NEW,
    )
    def post(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        note = call.body.get("message", "")
        row = register_directory(dataset, call.body["path"], note, actor=call.actor)
        return Answer(registration_shape(row), 202)


class RegistrationDetail(ApiView):
    """The state of a registration: pending with its progress, ready or failed."""

    @operation(
        "Show a registration: pending with its progress, ready or failed", answer=ref("DatasetRegistration")
    )
    def get(self, call: Call, dataset_id: str, registration_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        missing = NotVisible("There is no such registration.")
        rows = DatasetRegistration.objects.filter(dataset=dataset, pk=uuid_of(registration_id, missing))
        row = rows.select_related("created_by", "version").first()
        if row is None:
            raise missing
        shown = registration_shape(row)
        return Answer(shown, revision=shown)
