"""Every field of every body with values that it was not made for: a refusal that points at it, or an answer; no 5xx."""

from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import transaction

from controlplane.actions.directory import forget_lookups
from controlplane.actions.sign_in import forget_attempts
from controlplane.api.openapi import openapi_document
from jobs.models import Job
from tests.app.api.client import Api, Reply, name_in
from tests.cast import Cast
from tests.datasets import make_dataset, make_version
from tests.volumes import make_snapshot, make_volume

pytestmark = pytest.mark.django_db

NASTY: list[Any] = [
    None,
    True,
    "",
    "\0",
    "x" * 2000,
    -1,
    0,
    1 << 40,
    0.0001,
    1e308,
    [],
    [None],
    {},
    {"a": {"b": []}},
]
# Of what has another type than the field, one of each kind; all others have something to look into.
NASTY_BY_TYPE: dict[str, list[Any]] = {
    "string": [None, True, "", "\0", "x" * 2000, -1, 1e308, [None], {"a": {"b": []}}],
    "integer": [None, True, "", "\0", -1, 0, 1 << 40, 0.0001, 1e308, [None], {}],
    "boolean": [None, "", "\0", -1, 1 << 40, [None], {}],
}
VALID: dict[str, dict[str, Any]] = {
    "caches": {"version_id": "00000000-0000-4000-8000-000000000000"},
    "cache-locations": {"name": "fast", "cluster": "memory", "node_pools": ["default"]},
    "login": {"username": "ben", "password": "wrong"},
    "projects/{name}/code": {"files": [{"path": "a.py", "size": 1, "hash": "ab" * 32}]},
    "tokens": {"name": "ci"},
    "users": {"username": "dan"},
    "clusters": {
        "name": "moon",
        "engine": "memory",
        "settings": {"nodes": {"m1": {"devices": 1, "memory_mib": 9}}},
    },
    "node-pools": {"name": "dgx"},
    "node-pools/{name}": {"is_spot": True},
    "nodes/{name}/interruption-notice": {"in_seconds": 120},
    "departments": {"name": "sales"},
    "nodes/{name}": {"node_pool": None},
    "projects": {"name": "team-c"},
    "projects/{name}/code-imports": {"url": "https://git.example.org/train"},
    "projects/{name}/members": {"user": "chi", "role": "viewer"},
    "projects/{name}/members/{username}": {"role": "viewer"},
    "projects/{name}/jobs": {"name": "hyper9", "kind": "train"},
    "projects/{name}/jobs/plan": {"name": "hyper9", "kind": "train"},
    "projects/{name}/jobs/batch": {"jobs": [{"name": "hyper9", "kind": "train"}]},
    "jobs/{job_id}/scale": {"workers": 2},
    "datasets": {"project": "team-a", "name": "xray"},
    "projects/{name}/datasets": {"name": "xray"},
    "datasets/{dataset_id}/versions": {"manifest": "0" * 64, "parent": 1},
    "datasets/{dataset_id}/tags": {"name": "golden", "version": "1"},
    "datasets/{dataset_id}/registrations": {"path": "/data"},
    "versions/{version_id}/subsets": {"name": "part", "include": ["*"]},
    "snapshots/{snapshot_id}/restore": {"name": "copy"},
    "volumes/{volume_id}/clone": {"name": "copy"},
    "volumes": {"project": "team-a", "name": "data", "size": "10Gi"},
}


def cases() -> list[tuple[str, str, dict[str, list[Any]]]]:
    """(verb, route, nasty values by field) of every body that the document describes."""
    document = openapi_document()
    found = []
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            schema = (
                operation.get("requestBody", {})
                .get("content", {})
                .get("application/json", {})
                .get("schema", {})
            )
            if "$ref" in schema:
                schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            route = path.removeprefix("/api/v1/")
            fields = {name: nasty_for(one.get("type")) for name, one in schema.get("properties", {}).items()}
            found += [(verb.upper(), route, fields)] if fields else []
    return found


def nasty_for(types: str | list[str] | None) -> list[Any]:
    """What to try in a field of this type, of which a document may name several."""
    named = [one for one in ([types] if isinstance(types, str) else types or []) if one != "null"]
    return NASTY_BY_TYPE.get(named[0], NASTY) if len(named) == 1 else NASTY


def test_there_are_bodies_to_try():
    assert sum(len(fields) for _verb, _route, fields in cases()) > 60


@pytest.mark.parametrize(
    ("verb", "route", "fields"), cases(), ids=[f"{verb} {route}" for verb, route, _fields in cases()]
)
def test_a_field_takes_no_value_that_breaks_the_server(
    verb: str, route: str, fields: dict[str, list[Any]], cast: Cast, job: Job, settings: django_settings
):
    settings.DATASET_SOURCES = ["/data"]
    root = Api(cast.root)
    path = (
        route.replace("{job_id}", str(job.pk)).replace("{username}", "ben").replace("{name}", name_in(route))
    )
    if "{dataset_id}" in path:
        path = path.replace("{dataset_id}", str(make_dataset(cast.project).pk))
    if "{version_id}" in path:
        version = make_version(make_dataset(cast.project), {"a.txt": "alpha"})
        path = path.replace("{version_id}", str(version.pk))
    if "{snapshot_id}" in path:
        path = path.replace("{snapshot_id}", str(make_snapshot(make_volume(cast.project)).pk))
    if "{volume_id}" in path:
        path = path.replace("{volume_id}", str(make_volume(cast.project).pk))
    suffix = "" if route == "login" else "?dry_run=true"
    wrong = [
        (field, value, reply.status, reply.body)
        for field, values in fields.items()
        for value in values
        if not is_right(
            reply := tried(root, verb, path + suffix, VALID.get(route, {}) | {field: value}), field
        )
    ]
    assert wrong == []


def tried(root: Api, verb: str, path: str, body: dict[str, Any]) -> Reply:
    """Send a body; what it changed is undone for the next one, and no limit on attempts is between."""
    forget_attempts()
    forget_lookups()
    with transaction.atomic():
        reply = root.send(verb, path, body)
        transaction.set_rollback(True)
    return reply


def is_right(reply: Reply, field: str) -> bool:
    """No fault of the server; a refusal points at the field and says what is wrong."""
    if reply.status != 400:
        return reply.status < 500
    is_pointed = all(one.startswith(f"/{field}") or one == "/user" for one in reply.pointers)
    return is_pointed and bool(reply.body["detail"])
