"""Requests made from the OpenAPI document, right and wrong ones: answered as it says, and never with a 5xx."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from controlplane.access import SYSTEM
from controlplane.actions.accounts import issue_token
from controlplane.api.openapi import openapi_document
from datasets.actions.caches import cache_version, location_for
from datasets.actions.datasets import tag_version
from datasets.models import CodeImport, DatasetRegistration
from tests.app.api.client import BASE, name_in
from tests.app.api.placing import place
from tests.artifacts import make_artifact
from tests.builders import make_job
from tests.cast import make_cast
from tests.code_trees import make_tree
from tests.datasets import make_dataset, make_subset, make_version
from tests.volumes import make_snapshot, make_volume
from tests.worlds import standing

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

EXAMPLES = 6  # for each of 150 operations, half of them as an admin, the others as anybody
schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
SCHEMA = schemathesis.openapi.from_dict(openapi_document())
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
SHAPE = schemathesis.checks.response_schema_conformance
CHECKS = [
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.status_code_conformance,
    schemathesis.checks.content_type_conformance,
    SHAPE,
]


# One for all operations: schemathesis reads the constants of the code behind each application that it sees.
APPLICATION = get_wsgi_application()
SCHEMA.app = APPLICATION


@dataclass(frozen=True)
class Place:
    """What the operations are tried on: credentials, and values of path parameters that exist."""

    secrets: list[str]
    there: dict[str, str]


@pytest.fixture(scope="module")
def fuzzed(django_db_setup: None, django_db_blocker: Any) -> Iterator[Place]:
    with standing(django_db_blocker):
        yield make_place()


def make_place() -> Place:
    cast = make_cast()
    job = make_job(cast.project, "hyper1", cast.ben)
    place(job)
    people = [cast.root, cast.ana, cast.ben, cast.vera, cast.chi]
    secrets = [issue_token(user, "fuzz", actor=SYSTEM)[1] for user in people]
    version = make_version(make_dataset(cast.project, "fuzzed"), {"a.txt": "alpha"})
    tag_version(version.dataset, "golden", version, actor=SYSTEM)
    row = DatasetRegistration.objects.create(dataset=version.dataset, path="/data")
    make_subset(version, "small", "*.txt")
    there = {
        "job_id": str(job.pk),
        "username": "ben",
        "token_id": "1",
        "tag": "golden",
        "version": "1",
        "subset": "small",
    }
    there["tree"] = make_tree(cast.project, {"train.py": b""})
    there |= {"dataset_id": str(version.dataset_id), "version_id": str(version.pk), "sha256": "0" * 64}
    volume = make_volume(cast.project, "fuzzed", {"a.txt": "alpha"})
    there |= {"volume_id": str(volume.pk), "snapshot_id": str(make_snapshot(volume).pk)}
    imported = CodeImport.objects.create(project=cast.project, url="https://example.org/x", ref="main")
    cache = cache_version(version, location_for(cast.project.cluster), actor=SYSTEM)
    there |= {"cache_id": str(cache.pk), "import_id": str(imported.pk), "attempt": "1"}
    there["registration_id"] = str(row.pk)
    there["artifact_id"] = str(make_artifact(job, "model", {"weights": "1"}).pk)
    return Place(secrets, there)


@pytest.fixture
def _own_connection() -> Iterator[None]:
    """The application keeps the test's connection, which the end of a request would close."""
    signals = (request_started, request_finished)
    for signal in signals:
        signal.disconnect(close_old_connections)
    yield
    for signal in signals:
        signal.connect(close_old_connections)


@pytest.mark.usefixtures("_own_connection")
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
def test_an_operation_answers_as_the_document_says(operation: Any, fuzzed: Place):
    secrets, there = fuzzed.secrets, fuzzed.there | {"name": name_in(operation.path.removeprefix(BASE))}

    @seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), secret=st.sampled_from(["", "wrong", *secrets, *secrets[:1] * 3]))
    def call(case: Any, secret: str) -> None:
        case.path_parameters = {name: there[name] for name in case.path_parameters or {}}
        if operation.method.upper() in ("DELETE", "PATCH"):
            case.query = {"dry_run": "true"}  # what is there stays for the next example
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        # `fields` leaves out properties that the schema of the whole object requires
        is_whole = "fields" not in (case.query or {})
        checks = CHECKS if is_whole else [one for one in CHECKS if one is not SHAPE]
        case.call_and_validate(headers=headers, checks=checks, app=APPLICATION)

    call()
