"""What blocks ONTAP and Azure NetApp Files, and how that is named: first what both share, then what is one's alone. The
answers are served by the tests in the vendors' published shapes; they are not the real systems."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from datasets.storage.anf import AnfVolumes
from datasets.storage.anf_client import AnfClient
from datasets.storage.base import Blocked
from datasets.storage.ontap import OntapVolumes
from datasets.storage.ontap_client import OntapClient
from datasets.storage.timeouts import Timeouts
from datasets.storage.volume_files import is_mounted
from tests.contract.test_volume_storage import QUICK, SIZE, new_id
from tests.served_anf import SECRET, ServedAnf, served_anf
from tests.served_ontap import PASSWORD, ServedOntap, served_ontap


@dataclass(frozen=True)
class Ontap:
    served: ServedOntap

    def volumes(
        self, config: Any = None, timeouts: Timeouts = QUICK, root: Path | None = None, **how: Any
    ) -> OntapVolumes:
        client = OntapClient(config or self.served.config(), "gold", timeouts)
        return OntapVolumes(client, root or self.served.namespace, SIZE, **how)

    def unconfigured(self) -> OntapVolumes:
        return OntapVolumes(OntapClient(None, "gold"), self.served.namespace, SIZE)


@dataclass(frozen=True)
class Anf:
    served: ServedAnf

    def volumes(
        self,
        config: Any = None,
        timeouts: Timeouts = QUICK,
        root: Path | None = None,
        size: int = SIZE,
        tier: str = "standard",
        **how: Any,
    ) -> AnfVolumes:
        client = AnfClient(config or self.served.config(), "gold", timeouts)
        return AnfVolumes(client, root or self.served.namespace, size, tier, **how)

    def unconfigured(self) -> AnfVolumes:
        return AnfVolumes(AnfClient(None, "gold"), self.served.namespace, SIZE, "standard")


System = Ontap | Anf
Volumes = OntapVolumes | AnfVolumes


@contextmanager
def ontap(directory: Path) -> Iterator[Ontap]:
    with served_ontap(directory) as served:
        yield Ontap(served)


@contextmanager
def anf(directory: Path) -> Iterator[Anf]:
    with served_anf(directory) as served:
        yield Anf(served)


def without_credentials(system: System, _: pytest.MonkeyPatch) -> Volumes:
    return system.volumes(system.served.config(credentials=""))


def without_its_authority(system: System, _: pytest.MonkeyPatch) -> Volumes:
    return system.volumes(system.served.config(ca_file=""))


def without_an_answer(system: System, _: pytest.MonkeyPatch) -> Volumes:
    system.served.hangs.set()
    return system.volumes(timeouts=Timeouts(answer_seconds=0.2))


def without_the_package(system: System, monkeypatch: pytest.MonkeyPatch) -> Volumes:
    for module in ("ontap_kinds", "anf_kinds"):
        monkeypatch.setitem(sys.modules, f"datasets.storage.{module}", None)
    return system.volumes()


def without_the_class(system: System, _: pytest.MonkeyPatch) -> Volumes:
    return system.unconfigured()


def without_the_mount(system: System, _: pytest.MonkeyPatch) -> Volumes:
    return system.volumes(root=system.served.namespace / "elsewhere", mount_seconds=0.0)


def with_a_directory_in_place_of_the_mount(system: System, monkeypatch: pytest.MonkeyPatch) -> Volumes:
    monkeypatch.setattr("datasets.storage.volume_files.is_mounted", is_mounted)
    return system.volumes(mount_seconds=0.0)


def with_an_endless_job(system: System, _: pytest.MonkeyPatch) -> Volumes:
    system.served.looks = 1_000_000
    return system.volumes(timeouts=Timeouts(job_seconds=0.05, pause_seconds=(0.01, 0.01)))


def with_a_fault(status: int, body: dict[str, Any] | str) -> Callable[..., Volumes]:
    def make(system: System, _: pytest.MonkeyPatch) -> Volumes:
        volumes = system.volumes()
        if isinstance(system, Anf):
            # signed in
            volumes.remove(new_id())
        system.served.faults.append((status, body, {}))
        return volumes

    return make


def with_wrong_password(system: Ontap, _: pytest.MonkeyPatch) -> Volumes:
    system.served.credentials.write_text("[default]\nusername = trainyard\npassword = hunter2\n")
    return system.volumes()


def with_half_of_the_credentials(system: Ontap, _: pytest.MonkeyPatch) -> Volumes:
    system.served.credentials.write_text(f"[default]\npassword = {PASSWORD}\n")
    return system.volumes()


def of_another_svm(system: Ontap, _: pytest.MonkeyPatch) -> Volumes:
    return system.volumes(replace(system.served.config(), svm="other"))


def with_a_failing_job(code: str, message: str) -> Callable[..., Volumes]:
    def make(system: Ontap, _: pytest.MonkeyPatch) -> Volumes:
        system.served.next_job_error = {"code": code, "message": message}
        return system.volumes()

    return make


def with_wrong_secret(system: Anf, _: pytest.MonkeyPatch) -> Volumes:
    system.served.credentials.write_text(
        "[default]\ntenant_id = tenant1\nclient_id = client1\nclient_secret = hunter2\n"
    )
    return system.volumes()


def without_its_pool(system: Anf, _: pytest.MonkeyPatch) -> Volumes:
    return system.volumes(tier="ultra")


def too_small(system: Anf, _: pytest.MonkeyPatch) -> Volumes:
    return system.volumes(size=1 << 30)


def with_a_failing_operation(system: Anf, _: pytest.MonkeyPatch) -> Volumes:
    system.served.next_error = {"code": "PoolFull", "message": "The pool pool-standard is full."}
    return system.volumes()


# The words of ONTAP, and those of Azure NetApp Files.
BOTH = [
    (without_credentials, "no_credentials", True, "ONTAP_PASSWORD", "AZURE_CLIENT_SECRET"),
    (without_its_authority, "not_trusted", True, "ca_file", "ca_file"),
    (without_an_answer, "unreachable", True, "does not answer", "timed out"),
    (without_the_package, "package_missing", False, "requirements-netapp.txt", "requirements-netapp.txt"),
    (without_the_class, "class_not_configured", True, "TRAINYARD_STORAGE_CLASSES", "TRAINYARD_STORAGE_CLASSES"),
    (without_the_mount, "not_mounted", True, "svm1", "10.0.0.4:/trainyard-"),
    (with_a_directory_in_place_of_the_mount, "not_mounted", True, "svm1", "10.0.0.4:/trainyard-"),
    (with_an_endless_job, "job_not_done", True, "within 0.05 s", "within 0.05 s"),
    (with_a_fault(200, "<html>"), "unreachable", True, "like ONTAP", "as expected"),
]  # fmt: skip
OF_ONTAP = [
    (with_wrong_password, "not_permitted", True, "not authorized"),
    (with_half_of_the_credentials, "no_credentials", True, "username"),
    (of_another_svm, "no_such_svm", False, "other"),
    (with_a_fault(503, {"error": {"code": "9", "message": "Busy."}}), "storage_refused", True, "Busy."),
    (with_a_fault(400, {"error": {"code": "262197", "message": "Not a field."}}), "storage_refused", False, "262197"),
    (with_a_failing_job("917534", "Aggregate aggr1 is full."), "storage_refused", False, "aggr1 is full"),
    (with_a_failing_job("13107406", "Another operation."), "storage_refused", True, "Another operation"),
]  # fmt: skip
NOT_NOW = {"error": {"code": "Conflict", "message": "Another operation."}}
WRONG = {"error": {"code": "InvalidValueReceived", "message": "Not a field."}}
OF_ANF = [
    (with_wrong_secret, "not_permitted", True, "AADSTS7000215"),
    (without_its_pool, "no_such_tier", False, "ultra"),
    (too_small, "storage_refused", False, "50 GiB"),
    (with_a_fault(503, NOT_NOW), "storage_refused", True, "Another operation."),
    (with_a_fault(409, NOT_NOW), "storage_refused", True, "Conflict"),
    (with_a_fault(400, WRONG), "storage_refused", False, "Not a field."),
    (with_a_fault(403, WRONG), "not_permitted", True, "InvalidValueReceived"),
    (with_a_failing_operation, "storage_refused", False, "pool-standard is full"),
]
CASES = [
    *((ontap, *case) for case in [*[(*about, words) for *about, words, _ in BOTH], *OF_ONTAP]),
    *((anf, *case) for case in [*[(*about, words) for *about, _, words in BOTH], *OF_ANF]),
]


@pytest.mark.parametrize(("serve", "make", "code", "is_passing", "words"), CASES)
def test_what_blocks_it_has_a_name_and_says_what_to_do(
    serve, make, code, is_passing, words, tmp_path, monkeypatch
):
    for name in ("ONTAP_USERNAME", "AZURE_TENANT_ID"):
        monkeypatch.delenv(name, raising=False)
    with serve(tmp_path) as system:
        volumes = make(system, monkeypatch)
        with pytest.raises(Blocked) as blocked:
            volumes.provision(new_id())
    assert (blocked.value.code, blocked.value.is_passing) == (code, is_passing)
    assert words in blocked.value.detail
    for secret in ("hunter2", PASSWORD, SECRET):
        assert secret not in blocked.value.detail


def test_new_credentials_are_used_by_the_next_try(tmp_path, monkeypatch):
    with ontap(tmp_path) as system:
        right = system.served.credentials.read_text()
        volumes, volume = with_wrong_password(system, monkeypatch), new_id()
        with pytest.raises(Blocked):
            volumes.provision(volume)
        system.served.credentials.write_text(right)
        volumes.provision(volume)
        assert volumes.path(volume).is_dir()
