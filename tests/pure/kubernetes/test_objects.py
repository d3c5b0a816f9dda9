"""Objects beside a pod: made once, and never taken over from a try whose anchor is gone."""

from typing import Any

import pytest

from controlplane.engines.base import EngineRefused, EngineUnreachable
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.objects import Objects
from controlplane.kubernetes_api.errors import ApiError


class Server:
    """Has one object, and takes no other of its name."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def create(self, _collection: str, _body: dict[str, Any]) -> dict[str, Any]:
        raise ApiError(409, b'{"reason": "AlreadyExists"}')

    def find(self, _path: str) -> dict[str, Any]:
        return self.found


def service(anchor: str, kind: str = "ConfigMap") -> dict[str, Any]:
    owners = [{"kind": kind, "uid": anchor, "name": "job-1"}]
    return {
        "kind": "Service",
        "metadata": {"name": "job-1", "namespace": "yard-a", "ownerReferences": owners},
    }


def objects(found: dict[str, Any]) -> Objects:
    return Objects(Server(found), "ours")  # type: ignore[arg-type]  # as much of a client as it uses


def test_what_an_earlier_try_made_under_the_same_anchor_is_taken_over():
    made = objects(service("one")).make(service("one"))
    assert made == service("one")


def test_what_goes_with_an_anchor_that_is_gone_is_waited_for():
    with pytest.raises(EngineUnreachable, match="earlier try"):
        objects(service("one")).make(service("two"))


def test_what_kai_gave_to_the_pod_itself_is_as_it_should_be():
    given = service("a-pod", kind="Pod")
    assert objects(given).make(service("two")) == given


def test_a_pod_of_an_earlier_try_is_seen_to_end():
    pod = service("one") | {"kind": "Pod"}
    assert objects(pod).make(service("two") | {"kind": "Pod"}) == pod


def test_an_anchor_stays_in_use_though_its_namespace_was_not_as_we_saw_it():
    server = objects(service("one"))
    with server.in_use("/api/v1/namespaces/yard-a/configmaps/job-1"):
        pass
    server.forget("/api/v1/namespaces/yard-a")
    assert server.is_in_use("/api/v1/namespaces/yard-a/configmaps/job-1")


@pytest.mark.parametrize(
    ("labels", "way"),
    [({}, "Remove it, create the project"), ({names.INSTALLATION: "theirs"}, ". Create the project")],
)
def test_a_namespace_that_is_not_ours_is_refused_with_ways_that_can_be_gone(labels: dict[str, str], way: str):
    namespace = {"metadata": {"name": "yard-a", "labels": labels}}
    with pytest.raises(EngineRefused) as refusal:
        objects({}).check_namespace(namespace)
    assert refusal.value.code == "namespace_not_ours"
    assert (
        f"{way} under another name, or delete the cluster's projects or move them away"
        in refusal.value.message
    )
