"""REST views of datasets and their versions."""

from typing import Any

from django.db.models import QuerySet

from controlplane import fields
from controlplane.access import NotVisible, project_for
from controlplane.api import query
from controlplane.api.bodies import BodyField, label_field, text_field
from controlplane.api.json_schema import BOOLEAN, INTEGER, STRING, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import WITH_NAMES, Filter, Listing, fields_parameter, paged, trimmed
from controlplane.fields import Refused
from controlplane.models import Project, Role
from datasets.access import dataset_for, version_for, visible_datasets
from datasets.actions.datasets import (
    NewVersion,
    create_dataset,
    delete_dataset,
    edit_dataset,
    new_version,
    remove_tag,
    save_version,
    tag_version,
)
from datasets.api.schemas import DATASET, VERSION
from datasets.models import Dataset, DatasetVersion
from datasets.queries.datasets import (
    dataset_rows,
    dataset_shape,
    dataset_shapes,
    find_version,
    unknown_version,
    version_rows,
    version_shape,
    version_shapes,
)

MANIFEST_DIGITS = 64


def _manifest(value: Any) -> str:
    if (
        not isinstance(value, str)
        or len(value) != MANIFEST_DIGITS
        or not set(value) <= set("0123456789abcdef")
    ):
        raise Refused("not_a_hash", "A manifest is named by 64 lower-case hexadecimal digits.")
    return value


CHANGES = {
    "description": text_field(500),
    "is_shared": BodyField(fields.switch, BOOLEAN),
}
NEW_DATASET = {
    "name": label_field(63, is_required=True),
    **CHANGES,
}
NEW_DATASET_OF = {"project": BodyField(fields.dns_label(50), STRING, is_required=True), **NEW_DATASET}
COMMIT = {
    "manifest": BodyField(_manifest, {**STRING, "pattern": "^[0-9a-f]{64}$"}, is_required=True),
    "parent": BodyField(fields.whole(0, 1 << 31), {**INTEGER, "minimum": 0}, is_required=True),
    "message": text_field(500),
}
NEW_TAG = {
    "name": label_field(63, is_required=True),
    "version": BodyField(fields.text(63), STRING, is_required=True),
}
_ORDERINGS = {"name": ("name", "id"), "created_at": ("created_at", "id")}
_FILTERS = {
    "name": WITH_NAMES,
    "is_shared": Filter("is_shared", query.switch("Only shared datasets, or only others.")),
}
PROJECT_DATASETS = Listing(DATASET, _ORDERINGS, "name", _FILTERS)
DATASETS = PROJECT_DATASETS.of_all_projects()
VERSIONS = Listing(
    VERSION,
    {"number": ("number",)},
    "-number",
    {"author": Filter("author__in", query.texts("By these users."))},
)


class Datasets(ApiView):
    """Datasets of every project that the caller may see, and shared ones."""

    @DATASETS.operation("List datasets", "Dataset")
    def get(self, call: Call) -> Answer:
        return _listed(call, visible_datasets(call.actor), DATASETS)

    @operation("Create an empty dataset in a project", answer=ref("Dataset"), status=201, body=NEW_DATASET_OF)
    def post(self, call: Call) -> Answer:
        body = dict(call.body)
        project = project_for(call.actor, body.pop("project"), needed=Role.MEMBER)
        return _created(call, project, body)


class ProjectDatasets(ApiView):
    """Datasets of one project."""

    @PROJECT_DATASETS.operation("List a project's datasets", "Dataset")
    def get(self, call: Call, name: str) -> Answer:
        return _listed(call, Dataset.objects.filter(project=project_for(call.actor, name)), PROJECT_DATASETS)

    @operation("Create an empty dataset", answer=ref("Dataset"), status=201, body=NEW_DATASET)
    def post(self, call: Call, name: str) -> Answer:
        # Check access before reading the body, so that a refused request costs little.
        project = project_for(call.actor, name, needed=Role.MEMBER)
        return _created(call, project, call.body)


class DatasetDetail(ApiView):
    """A dataset, by id. Deleting it deletes all its versions."""

    @operation("A dataset", answer=ref("Dataset"), query={"fields": fields_parameter(DATASET)})
    def get(self, call: Call, dataset_id: str) -> Answer:
        return _answer(call, dataset_for(call.actor, dataset_id))

    @operation("Change a dataset's description, or share it", answer=ref("Dataset"), body=CHANGES)
    def patch(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        if "is_shared" in call.body:
            dataset_for(call.actor, dataset_id, needed=Role.OWNER)
        call.require_match(dataset, _revision)
        if call.body:
            edit_dataset(dataset, call.body, actor=call.actor)
        return _answer(call, dataset)

    @operation("Delete a dataset with all its versions", answer=ref("Dataset"))
    def delete(self, call: Call, dataset_id: str) -> Answer:
        dataset = call.require_match(dataset_for(call.actor, dataset_id, needed=Role.OWNER), _revision)
        shown = dataset_shape(dataset)
        delete_dataset(dataset, actor=call.actor)
        return Answer(shown)


def _new_version(call: Call, dataset_id: str) -> NewVersion:
    dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
    return new_version(dataset, call.body["manifest"], call.body["parent"])


class Versions(ApiView):
    """The versions of a dataset, newest first. A new one is created from a stored manifest."""

    @VERSIONS.operation("List versions, newest first", "DatasetVersion")
    def get(self, call: Call, dataset_id: str) -> Answer:
        rows = DatasetVersion.objects.whole().filter(dataset=dataset_for(call.actor, dataset_id))
        return paged(call, rows, VERSIONS, fetch=version_rows, shape=version_shapes)

    @operation(
        "Create a version from a manifest whose contents were sent; without changes the parent is returned",
        answer=ref("DatasetVersion"),
        status=201,
        body=COMMIT,
        # In the transaction, all writers would wait for the lake.
        before=_new_version,
    )
    def post(self, call: Call, dataset_id: str) -> Answer:
        version, is_new = save_version(call.prepared, call.body.get("message", ""), actor=call.actor)
        return Answer(version_shape(version), 201 if is_new else 200)


class NamedVersion(ApiView):
    """A version by its number, a tag or `latest`."""

    @operation("Show the version with this number or tag, or `latest`", answer=ref("DatasetVersion"))
    def get(self, call: Call, dataset_id: str, version: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id)
        found = find_version(dataset, version)
        if found is None:
            raise NotVisible(unknown_version(dataset, version))
        return _version_answer(found)


class VersionDetail(ApiView):
    """A version or subset, by id."""

    @operation("A version", answer=ref("DatasetVersion"))
    def get(self, call: Call, version_id: str) -> Answer:
        return _version_answer(version_for(call.actor, version_id))


class Tags(ApiView):
    """Tags of a dataset. Setting one that exists moves it to another version."""

    @operation("Give a version a tag, or move the tag to it", answer=ref("DatasetVersion"), body=NEW_TAG)
    def post(self, call: Call, dataset_id: str) -> Answer:
        dataset = dataset_for(call.actor, dataset_id, needed=Role.MEMBER)
        version = find_version(dataset, call.body["version"])
        if version is None:
            raise NotVisible(unknown_version(dataset, call.body["version"]))
        tag_version(dataset, call.body["name"], version, actor=call.actor)
        return Answer(version_shape(version))


class TagDetail(ApiView):
    """A tag of a dataset; removing it leaves its version."""

    @operation("Remove a tag; its version stays", answer={}, status=204)
    def delete(self, call: Call, dataset_id: str, tag: str) -> Answer:
        remove_tag(dataset_for(call.actor, dataset_id, needed=Role.MEMBER), tag, actor=call.actor)
        return Answer(None, 204)


def _listed(call: Call, rows: QuerySet[Dataset], listing: Listing) -> Answer:
    return paged(call, rows, listing, fetch=dataset_rows, shape=dataset_shapes)


def _created(call: Call, project: Project, values: dict[str, Any]) -> Answer:
    # Sharing shows the project's data to every user, so it requires the owner role, as for a change.
    if values.get("is_shared"):
        project_for(call.actor, project.name, needed=Role.OWNER)
    return _answer(call, create_dataset(project, values, actor=call.actor), 201)


def _answer(call: Call, dataset: Dataset, status: int = 200) -> Answer:
    return Answer(trimmed(call, dataset_shape(dataset)), status, revision=_revision(dataset))


def _version_answer(version: DatasetVersion) -> Answer:
    shown = version_shape(version)
    return Answer(shown, revision=shown)


def _revision(dataset: Dataset) -> Any:
    return [dataset.description, dataset.is_shared, dataset.latest]
