"""Paths in the words of access rules, and the model's two arguments about versions."""

import pytest

from controlplane.kubernetes_api.client import backoff_seconds, verb_and_resource
from controlplane.kubernetes_api.reflector import Model, number_of


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/version", {}, ("get", "/version")),
        ("GET", "/api/v1/pods", {}, ("list", "pods")),
        ("GET", "/api/v1/pods", {"watch": "1"}, ("watch", "pods")),
        ("GET", "/api/v1/nodes/a", {}, ("get", "nodes")),
        ("GET", "/api/v1/namespaces", {}, ("list", "namespaces")),
        ("DELETE", "/api/v1/namespaces/a", {}, ("delete", "namespaces")),
        ("POST", "/api/v1/namespaces/a/pods", {}, ("create", "pods")),
        ("GET", "/api/v1/namespaces/a/pods/b/log", {}, ("get", "pods/log")),
        ("PATCH", "/apis/kubeflow.org/v2beta1/namespaces/a/mpijobs/b", {}, ("patch", "mpijobs.kubeflow.org")),
        ("GET", "/apis/scheduling.run.ai/v2/queues", {}, ("list", "queues.scheduling.run.ai")),
    ],
)
def test_verbs_and_resources(method, path, query, expected):
    assert verb_and_resource(method, path, query) == expected


def test_backoff_stays_in_its_bounds():
    assert all(0 <= backoff_seconds(1, 0.8, 30) <= 0.8 for _ in range(100))
    assert max(backoff_seconds(50, 0.8, 30) for _ in range(200)) > 15
    assert all(backoff_seconds(10_000, 0.8, 30) <= 30 for _ in range(100))


def test_numbers():
    assert [number_of(version) for version in ("12", "", None, "1a", "²", 3)] == [
        12,
        None,
        None,
        None,
        None,
        None,
    ]


def obj(name: str, version: str) -> dict:
    return {"metadata": {"name": name, "resourceVersion": version}}


def model(*listed: tuple[str, str], version: int = 10) -> Model:
    made = Model(lambda raw: raw["metadata"]["resourceVersion"])
    relist(made, *listed, version=version)
    return made


def relist(made: Model, *listed: tuple[str, str], version: int) -> bool:
    made.begin_list()
    return made.end_list([made.entry(obj(*each)) for each in listed], version)


def test_the_larger_version_holds_in_any_order():
    made = model(("a", "5"))
    assert made.take(obj("a", "12"), is_gone=False)
    assert not made.take(obj("a", "11"), is_gone=False)
    assert not made.take(obj("a", "12"), is_gone=False)
    assert dict(made.items()) == {"a": "12"}


def test_what_is_kept_the_same_is_no_news():
    made = Model(lambda raw: raw["spec"])
    first = obj("a", "5") | {"spec": {"taints": []}}
    assert made.take(first, is_gone=False)
    assert not made.take(obj("a", "6") | {"spec": {"taints": []}}, is_gone=False)
    assert made.get("a") is first["spec"]
    assert not made.take(first, is_gone=True), "version 6 is known, if not shown"
    assert made.take(obj("a", "7") | {"spec": {"taints": ["x"]}}, is_gone=False)
    assert made.get("b") is None


def test_the_dead_stay_dead():
    made = model(("a", "5"))
    assert made.take(obj("a", "12"), is_gone=True)
    assert not made.take(obj("a", "11"), is_gone=False)
    assert not made.observe(obj("a", "11"))
    assert made.take(obj("a", "13"), is_gone=False)
    assert dict(made.items()) == {"a": "13"}


def test_the_end_of_an_earlier_object_of_the_same_name_does_not_end_the_new_one():
    made = model(("a", "5"))
    made.observe(obj("a", "20"))
    assert not made.take(obj("a", "19"), is_gone=True)
    assert dict(made.items()) == {"a": "20"}


def test_what_was_observed_while_a_list_was_on_its_way_is_laid_over_it():
    made = model()
    made.begin_list()
    made.observe(obj("new", "25"))
    made.observe(obj("deleted-before-the-list", "15"))
    made.end_list([made.entry(obj("a", "5"))], 20)
    assert dict(made.items()) == {"a": "5", "new": "25"}


def test_what_was_observed_before_a_list_began_is_in_it_or_gone():
    made = model()
    made.observe(obj("gone", "15"))
    relist(made, ("a", "5"), version=20)
    assert dict(made.items()) == {"a": "5"}


def test_an_answer_from_before_the_list_does_not_come_back():
    made = model(("a", "5"), version=20)
    assert not made.observe(obj("b", "15"))
    assert dict(made.items()) == {"a": "5"}


def test_a_server_whose_versions_went_back_is_believed():
    """etcd was restored from a backup."""
    made = model(("a", "500"), ("b", "400"), version=1000)
    assert relist(made, ("a", "50"), version=100)
    assert made.take(obj("a", "101"), is_gone=False)
    assert dict(made.items()) == {"a": "101"}


def test_a_list_tells_whether_anything_is_different():
    made = model(("a", "5"))
    assert not relist(made, ("a", "5"), version=30)
    assert relist(made, ("a", "31"), version=40)
    assert relist(made, version=50)


def test_versions_that_are_no_numbers_are_taken_as_they_come():
    made = model()
    assert made.take(obj("a", "x2"), is_gone=False)
    assert made.take(obj("a", "x1"), is_gone=False)
    assert not made.observe(obj("a", "x3"))
    assert dict(made.items()) == {"a": "x1"}


def test_a_status_is_no_object():
    assert not model().observe({"kind": "Status", "metadata": {}})
