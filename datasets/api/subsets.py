"""REST views of saved subsets of versions."""

from typing import Any

from controlplane import fields
from controlplane.access import NotVisible
from controlplane.api.bodies import BodyField, label_field
from controlplane.api.json_schema import STRING, listed, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Listing, paged
from controlplane.api.parsers import StrictJSONParser
from controlplane.models import Role
from datasets.access import version_for
from datasets.actions.subsets import NewSubset, delete_subset, new_subset, save_subset
from datasets.api.schemas import VERSION
from datasets.manifests import FILES_MOST, PATH_MOST_BYTES
from datasets.models import DatasetVersion
from datasets.queries.datasets import (
    subset_rows,
    unknown_subset,
    version_rows,
    version_shape,
    version_shapes,
)
from datasets.selection import PATTERN_MOST_BYTES, PATTERNS_MOST, Selection

# Limit on the body's bytes; enough for the list of all paths of a large version.
BODY_MOST_BYTES = 16 << 20


def _pattern(value: Any) -> str:
    """Return the value as a pattern. Raises Refused for an empty one, which would match every name."""
    found: str = fields.text(PATTERN_MOST_BYTES)(value)
    if not found.strip():
        raise fields.Refused("empty_pattern", "A pattern cannot be empty; leave it out.")
    return found


_PATTERNS = BodyField(
    fields.listed(_pattern, PATTERNS_MOST),
    {**listed(STRING), "maxItems": PATTERNS_MOST},
)
NEW_SUBSET = {
    "name": label_field(63, is_required=True),
    "include": _PATTERNS,
    "exclude": _PATTERNS,
    "paths": BodyField(fields.listed(fields.text(PATH_MOST_BYTES), FILES_MOST), listed(STRING)),
}
SUBSETS = Listing(VERSION, {"name": ("subset", "id")}, "name")


class SelectionParser(StrictJSONParser):
    """DRF parser for JSON bodies of up to the size of a long path list."""

    most_bytes = BODY_MOST_BYTES


def _new_subset(call: Call, version_id: str) -> NewSubset:
    version = version_for(call.actor, version_id, needed=Role.MEMBER)
    return new_subset(version, selection_of(call.body))


class Subsets(ApiView):
    """The subsets of a version: named selections of its files, which can be mounted like a version."""

    parser_classes = [SelectionParser]

    @SUBSETS.operation("List a version's subsets", "DatasetVersion")
    def get(self, call: Call, version_id: str) -> Answer:
        rows = subset_rows(version_for(call.actor, version_id))
        return paged(call, rows, SUBSETS, fetch=version_rows, shape=version_shapes)

    @operation(
        "Save the files of a version that match a pattern of `include` or are in `paths`, and none of `exclude`",
        answer=ref("DatasetVersion"),
        status=201,
        body=NEW_SUBSET,
        # In the transaction, all writers would wait for the lake.
        before=_new_subset,
    )
    def post(self, call: Call, version_id: str) -> Answer:
        subset, is_new = save_subset(call.prepared, call.body["name"], actor=call.actor)
        return Answer(version_shape(subset), 201 if is_new else 200)


class SubsetDetail(ApiView):
    """A subset of a version, by name. Deleting it deletes its caches too; the version stays."""

    @operation("A subset of a version, by name", answer=ref("DatasetVersion"))
    def get(self, call: Call, version_id: str, subset: str) -> Answer:
        shown = version_shape(_named(version_for(call.actor, version_id), subset))
        return Answer(shown, revision=shown)

    @operation("Delete a subset; its version stays", answer=ref("DatasetVersion"))
    def delete(self, call: Call, version_id: str, subset: str) -> Answer:
        version = version_for(call.actor, version_id, needed=Role.OWNER)
        found = call.require_match(_named(version, subset), version_shape)
        shape = version_shape(found)
        delete_subset(found, actor=call.actor)
        return Answer(shape)


def selection_of(sent: dict[str, Any]) -> Selection:
    """Return the selection that the fields `include`, `exclude` and `paths` of the request body `sent` describe;
    a missing field counts as empty."""
    return Selection(
        *([text.encode() for text in sent.get(name, ())] for name in ("include", "exclude", "paths"))
    )


def _named(version: DatasetVersion, name: str) -> DatasetVersion:
    found = subset_rows(version).filter(subset=name).first()
    if found is None:
        raise NotVisible(unknown_subset(version, name[:80]))
    return found
