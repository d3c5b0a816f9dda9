"""What the MPI operator is given is taken by its own definition, on a real API server. The operator is not needed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
import yaml

from tests.kube import KubeCluster
from tests.kubernetes import mpi_rig
from tests.kubernetes.test_cluster_preflight import look
from tests.pure.kubernetes.mpi_goldens import GOLDENS, PROFILE, path_of

WHY_NOT = mpi_rig.why_no_definition()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def defined(kube: KubeCluster) -> Iterator[KubeCluster]:
    with mpi_rig.defined(kube):
        yield kube


@pytest.mark.parametrize("name", GOLDENS)
def test_the_definition_takes_it(defined: KubeCluster, name: str):
    namespace = f"dry-{secrets.token_hex(3)}"
    defined.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    text = path_of(name).read_text().replace(PROFILE.namespace_of("team-a"), namespace)
    body = next(each for each in yaml.safe_load_all(text) if each["kind"] == "MPIJob")
    path = mpi_rig.MPI_JOBS.replace("mpijobs", f"namespaces/{namespace}/mpijobs")
    answer = defined.must("POST", f"{path}?dryRun=All&fieldValidation=Strict", body)
    assert answer["spec"] == body["spec"] | {"launcherCreationPolicy": "AtStartup"} | {
        "runPolicy": body["spec"]["runPolicy"] | {"suspend": False}
    }
    body["spec"]["slotsPerWorkers"] = 1
    assert defined.api("POST", f"{path}?dryRun=All&fieldValidation=Strict", body)[0] == 400


def test_the_look_finds_it_and_who_may_use_it(defined: KubeCluster):
    assert look(defined.kubeconfig_text)["mpi_operator"].outcome == "ok"
    assert "off" in look(defined.kubeconfig_text, mpi_operator=False)["mpi_launcher"].message
    assert "directories" in look(defined.kubeconfig_text, work_storage_class="a")["mpi_launcher"].message
    token = defined.service_account_token("default", "no-mpi")
    assert "may not" in look(defined.kubeconfig_for(token))["mpi_launcher"].message
