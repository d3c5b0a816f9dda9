"""The OpenAPI document: committed as the code makes it, complete, and true of what routes answer."""

import re
from typing import Any

import jsonschema_rs
import pytest
from django.core.management import call_command

from controlplane.access import SYSTEM
from controlplane.api.openapi import openapi_document
from datasets.actions.caches import cache_version, location_for
from datasets.models import CodeImport, DatasetRegistration
from datasets.queries.datasets import find_dataset
from datasets.queries.volumes import find_volume
from jobs.models import Job
from tests.access.routes import rest_routes
from tests.access.rules import REST
from tests.app.api.client import Api, Reply, name_in
from tests.app.api.placing import place
from tests.artifacts import make_artifact
from tests.builders import make_job
from tests.cast import Cast
from tests.code_trees import make_tree
from tests.datasets import make_dataset, make_subset, make_version
from tests.volumes import make_snapshot, make_volume

DOCUMENT = openapi_document()


def test_the_committed_document_is_the_codes():
    call_command("openapi", check=True)


def test_every_route_and_verb_is_described():
    described = {
        (path.removeprefix("/api/v1/"), verb.upper())
        for path, verbs in DOCUMENT["paths"].items()
        for verb in verbs
    }
    table = {
        (re.sub(r"<str:(\w+)>", r"{\1}", route), verb) for route, verbs in REST.items() for verb in verbs
    }
    assert described == table
    assert {route for route, _ in rest_routes()} == set(REST)


def test_references_and_operation_ids_hold():
    text = str(DOCUMENT)
    used = set(re.findall(r"#/components/schemas/(\w+)", text))
    assert used <= set(DOCUMENT["components"]["schemas"])
    ids = [operation["operationId"] for verbs in DOCUMENT["paths"].values() for operation in verbs.values()]
    assert len(ids) == len(set(ids))
    for name, schema in DOCUMENT["components"]["schemas"].items():
        jsonschema_rs.meta.validate(schema)
        assert schema.get("description") or schema["type"] != "object", name


READS = [
    "whoami",
    "tokens",
    "tokens/{token_id}",
    "users",
    "users/{username}",
    "clusters",
    "clusters/{name}",
    "clusters/{name}/view",
    "node-pools",
    "nodes",
    "nodes/{name}",
    "departments",
    "departments/{name}",
    "projects",
    "projects/{name}",
    "projects/{name}/members",
    "projects/{name}/members/{username}",
    "projects/{name}/jobs",
    "projects/{name}/code",
    "projects/{name}/code/{tree}",
    "projects/{name}/code/{tree}/files",
    "projects/{name}/code-imports/{import_id}",
    "images",
    "jobs",
    "jobs/{job_id}",
    "jobs/{job_id}/scale-operations",
    "jobs/{job_id}/pods",
    "jobs/{job_id}/events",
    "jobs/{job_id}/logs",
    "jobs/{job_id}/metrics",
    "jobs/{job_id}/explain",
    "jobs/{job_id}/spec",
    "datasets",
    "projects/{name}/datasets",
    "datasets/{dataset_id}",
    "datasets/{dataset_id}/versions",
    "datasets/{dataset_id}/versions/{version}",
    "datasets/{dataset_id}/content/nearby",
    "datasets/{dataset_id}/registrations/{registration_id}",
    "datasets/{dataset_id}/content/parts/{sha256}",
    "versions/{version_id}",
    "versions/{version_id}/files",
    "versions/{version_id}/diff",
    "versions/{version_id}/subsets",
    "versions/{version_id}/subsets/{subset}",
    "caches",
    "caches/{cache_id}",
    "cache-locations",
    "cache-locations/{name}",
    "storage-classes",
    "volumes",
    "volumes/{volume_id}",
    "volumes/{volume_id}/files",
    "snapshots",
    "snapshots/{snapshot_id}",
    "snapshots/{snapshot_id}/lineage",
    "artifacts",
    "artifacts/{artifact_id}",
    "artifacts/{artifact_id}/files",
    "artifacts/{artifact_id}/lineage",
    "jobs/{job_id}/artifacts",
    "jobs/{job_id}/lineage",
    "versions/{version_id}/lineage",
    "events",
    "audit",
    "telemetry/overview",
    "telemetry/series",
]
BYTES_OUT = {
    "pod-code/{job_id}/{attempt}",
    "pod-data/{cache_id}",
    "projects/{name}/code/{tree}/archive",
    "openapi.json",
    "versions/{version_id}/content",
    "versions/{version_id}/manifest",
    "versions/{version_id}/pack",
    "volumes/{volume_id}/content",
    "artifacts/{artifact_id}/content",
    "artifacts/{artifact_id}/manifest",
    "artifacts/{artifact_id}/pack",
    "artifacts/{artifact_id}/archive",
}
WRITES: list[tuple[str, str, Any]] = [
    ("POST", "tokens", {"name": "ci"}),
    ("POST", "users", {"username": "dan"}),
    ("POST", "node-pools", {"name": "dgx"}),
    ("PATCH", "node-pools/{name}", {"is_spot": True}),
    (
        "POST",
        "clusters",
        {"name": "moon", "engine": "memory", "settings": {"nodes": {"m1": {"devices": 1, "memory_mib": 9}}}},
    ),
    ("POST", "nodes/{name}/drain", None),
    ("POST", "nodes/{name}/interruption-notice", {"in_seconds": 120}),
    ("POST", "nodes/{name}/cordon", None),
    ("POST", "departments", {"name": "sales", "gpu_quota": 4}),
    ("PATCH", "departments/{name}", {"gpu_limit": 4}),
    ("POST", "projects", {"name": "team-c", "gpu_quota": 99}),
    ("PATCH", "projects/{name}", {"gpu_quota": 2.5}),
    ("DELETE", "projects/{name}?dry_run=true", None),
    ("POST", "projects/{name}/members", {"user": "chi", "role": "viewer"}),
    (
        "POST",
        "projects/{name}/jobs",
        {"name": "hyper9", "kind": "interactive", "gpus": 0.5, "ports": [{"port": 8888}]},
    ),
    ("POST", "projects/{name}/jobs/plan", {"name": "sweep-1", "kind": "train", "image": "python:3"}),
    (
        "POST",
        "projects/{name}/jobs/batch",
        {"jobs": [{"name": "sweep-1", "kind": "train", "image": "python:3"}]},
    ),
    ("POST", "projects/{name}/code", {"files": [{"path": "a", "size": 1, "hash": "ab" * 32}]}),
    ("POST", "projects/{name}/code/{tree}/commit", {"commit": "9c1f2ab"}),
    ("POST", "projects/{name}/code-imports", {"url": "https://git.example.org/train"}),
    ("POST", "projects/{name}/datasets", {"name": "scans"}),
    ("POST", "datasets", {"project": "team-a", "name": "scans-2"}),
    ("PATCH", "datasets/{dataset_id}", {"description": "x"}),
    ("POST", "datasets/{dataset_id}/tags", {"name": "golden", "version": "latest"}),
    ("POST", "versions/{version_id}/subsets", {"name": "part", "include": ["sub/"]}),
    ("DELETE", "versions/{version_id}/subsets/{subset}", None),
    ("POST", "versions/{version_id}/verify", None),
    ("POST", "caches/{cache_id}/pin", None),
    ("POST", "caches/{cache_id}/unpin", None),
    ("DELETE", "caches/{cache_id}", None),
    ("PATCH", "cache-locations/{name}", {"room_bytes": 1 << 40}),
    ("DELETE", "datasets/{dataset_id}", None),
    ("POST", "volumes", {"project": "team-a", "name": "scans", "size": "1Gi"}),
    ("PATCH", "volumes/{volume_id}", {"keep_last": 3}),
    ("POST", "volumes/{volume_id}/resize", {"size": "2Gi"}),
    ("POST", "volumes/{volume_id}/clone", {"name": "copy"}),
    ("POST", "volumes/{volume_id}/access-mode", {"access_mode": "ReadWriteMany"}),
    ("POST", "volumes/{volume_id}/service-tier", {"service_tier": "ultra"}),
    ("DELETE", "volumes/{volume_id}", None),
    ("POST", "snapshots/{snapshot_id}/restore", {"name": "back"}),
    ("DELETE", "snapshots/{snapshot_id}", None),
    ("DELETE", "artifacts/{artifact_id}", None),
    ("PATCH", "jobs/{job_id}", {"labels": {"a": "b"}}),
    ("POST", "jobs/{job_id}/clone", None),
    ("POST", "jobs/{job_id}/suspend", {"grace_seconds": 30}),
    ("DELETE", "jobs/{job_id}", None),
]


@pytest.mark.django_db
def test_every_read_answers_what_the_document_says(cast: Cast, job: Job):
    assert (
        set(READS)
        == {re.sub(r"<str:(\w+)>", r"{\1}", route) for route in REST if "GET" in REST[route]} - BYTES_OUT
    )
    root, shown = Api(cast.root), make_job(cast.project, "runs", cast.ben, ports=[{"port": 8888}])
    place(shown)
    for template in READS:
        path = _path(template, shown, root)
        _check("GET", template, root.get(path))


@pytest.mark.django_db
@pytest.mark.parametrize(("verb", "template", "body"), WRITES)
def test_writes_answer_what_the_document_says(verb: str, template: str, body: Any, cast: Cast, job: Job):
    root = Api(cast.root)
    place(job)
    _check(verb, template.partition("?")[0], root.send(verb, _path(template, job, root), body))


@pytest.mark.django_db
def test_a_problem_is_what_the_document_says(cast: Cast):
    schema = {"$ref": "#/components/schemas/Problem", "components": DOCUMENT["components"]}
    reply = Api(cast.root).post("projects", {"name": "X", "nope": 1})
    jsonschema_rs.validator_for(schema).validate(reply.body)


def _path(template: str, job: Job, root: Api) -> str:
    path = (
        template.replace("{job_id}", str(job.pk))
        .replace("{username}", "ben")
        .replace("{name}", name_in(template))
    )
    if "{tree}" in path:
        path = path.replace("{tree}", make_tree(job.project, {"train.py": b""}))
    if "{dataset_id}" in path or "{version_id}" in path:
        dataset = find_dataset(job.project, "xray") or make_dataset(job.project)
        version = make_version(dataset, {"a.txt": "alpha", "sub/b.txt": "beta"})
        path = path.replace("{dataset_id}", str(dataset.pk)).replace("{version_id}", str(version.pk))
        path = path.replace("{version}", "1").replace("{sha256}", "0" * 64)
    if "{registration_id}" in path:
        row = DatasetRegistration.objects.create(dataset=dataset, path="/data")
        path = path.replace("{registration_id}", str(row.pk))
    if "{subset}" in path:
        path = path.replace("{subset}", make_subset(version, "small", "*.txt").subset)
    if "cache" in template:
        dataset = find_dataset(job.project, "xray") or make_dataset(job.project)
        version = dataset.versions.first() or make_version(dataset, {"a.txt": "alpha"})
        location = location_for(job.project.cluster)
        path = path.replace("{cache_id}", str(cache_version(version, location, actor=SYSTEM).pk))
    if "{snapshot_id}" in path:
        volume = find_volume(job.project, "data") or make_volume(job.project)
        path = path.replace("{snapshot_id}", str((volume.snapshots.first() or make_snapshot(volume)).pk))
    if "{volume_id}" in path:
        volume = find_volume(job.project, "data") or make_volume(job.project, files={"a.txt": "alpha"})
        path = path.replace("{volume_id}", str(volume.pk))
    if "{artifact_id}" in path:
        artifact = job.artifacts.first() or make_artifact(job, "model", {"weights": "1"})
        path = path.replace("{artifact_id}", str(artifact.pk))
    if "{import_id}" in path:
        row = CodeImport.objects.create(project=job.project, url="https://git.example.org/x", ref="main")
        path = path.replace("{import_id}", str(row.pk))
    if "{token_id}" in path:
        path = path.replace("{token_id}", str(root.get("tokens").body["results"][0]["id"]))
    return path + ("?metric=gpus_allocated&by=project" if path == "telemetry/series" else "")


def _check(verb: str, template: str, reply: Reply) -> None:
    responses = DOCUMENT["paths"]["/api/v1/" + template][verb.lower()]["responses"]
    assert str(reply.status) in responses, (template, reply.status, reply.body)
    content = responses[str(reply.status)].get("content")
    if content is None:
        assert reply.body == b""
        return
    schema = content["application/json"]["schema"] | {"components": DOCUMENT["components"]}
    errors = [
        f"{template}: {error.instance_path} {error.message}"
        for error in jsonschema_rs.validator_for(schema).iter_errors(reply.body)
    ]
    assert not errors, errors[:5]


def test_a_followed_log_is_described_as_an_event_stream():
    answers = openapi_document()["paths"]["/api/v1/jobs/{job_id}/logs"]["get"]["responses"]
    assert set(answers["200"]["content"]) == {"application/json", "text/event-stream"}
