"""The client against a real API server, straight and through a proxy that loses, delays and refuses."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes.prometheus import prometheus_behind
from controlplane.kubernetes_api.client import TRIES, Client
from controlplane.kubernetes_api.credentials import Access, access_of_kubeconfig
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from controlplane.kubernetes_api.rate_limiter import URGENT, TokenBucket
from tests.kube import KubeCluster
from tests.kubernetes.proxy import FaultProxy, Faults, fault_proxy
from tests.servers import free_port

CREATES = 300


@pytest.fixture
def client(kube: KubeCluster) -> Iterator[Client]:
    client = Client(access_of_kubeconfig(kube.kubeconfig_text))
    yield client
    client.close()


@pytest.fixture
def proxy(kube: KubeCluster) -> Iterator[FaultProxy]:
    with fault_proxy(kube) as proxy:
        yield proxy


@pytest.fixture
def faulty(proxy: FaultProxy) -> Iterator[Client]:
    client = Client(proxy.access())
    yield client
    client.close()


@pytest.fixture
def maps(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    """The path of the ConfigMaps of a namespace of this test's own."""
    name = request.node.name.replace("_", "-")[:60].strip("-")
    client.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield f"/api/v1/namespaces/{name}/configmaps"
    client.delete(f"/api/v1/namespaces/{name}")


def config_map(name: str, **data: str) -> dict:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_every_verb_and_what_it_counts(client, maps):
    created = client.create(maps, config_map("a", x="1"))
    assert client.get(f"{maps}/a")["metadata"]["uid"] == created["metadata"]["uid"]
    assert client.apply(f"{maps}/a", config_map("a", x="2"))["data"] == {"x": "2"}
    assert client.merge(f"{maps}/a", {"data": {"y": "3"}})["data"] == {"x": "2", "y": "3"}
    assert client.create(maps, config_map("dry"), dry_run=True)["metadata"]["name"] == "dry"
    assert "a" in {one["metadata"]["name"] for one in client.get(maps)["items"]}
    assert client.delete(f"{maps}/a") is not None
    assert client.delete(f"{maps}/a") is None
    counted = {key: number for key, number in client.calls.items() if key[1] == "configmaps"}
    assert counted == {
        ("create", "configmaps"): 2,
        ("get", "configmaps"): 1,
        ("list", "configmaps"): 1,
        ("patch", "configmaps"): 2,
        ("delete", "configmaps"): 2,
    }


def test_one_finalizer_is_removed_from_the_object_with_this_uid_only(client, maps):
    body = config_map("held")
    body["metadata"]["finalizers"] = ["example.org/ours", "example.org/theirs"]
    path, uid = f"{maps}/held", client.create(maps, body)["metadata"]["uid"]
    assert client.remove_finalizer(path, "example.org/ours", uid=uid.replace(uid[0], "g")) is None
    for _ in range(2):
        left = client.remove_finalizer(path, "example.org/ours", uid=uid)
        assert left["metadata"]["finalizers"] == ["example.org/theirs"]
    client.delete(path)
    client.remove_finalizer(path, "example.org/theirs", uid=uid)
    assert client.find(path) is None
    assert client.remove_finalizer(path, "example.org/theirs", uid=uid) is None


def test_a_refusal_carries_the_servers_own_words(client, maps):
    client.create(maps, config_map("a"))
    with pytest.raises(ApiError) as taken:
        client.create(maps, config_map("a"))
    assert (taken.value.status, taken.value.reason) == (409, "AlreadyExists")
    assert taken.value.details["name"] == "a"
    with pytest.raises(ApiError) as invalid:
        client.create(maps, config_map("Not A Name"))
    assert invalid.value.status == 422
    assert "lowercase" in invalid.value.message


def test_delete_of_another_object_of_the_same_name_is_refused(client, maps):
    client.create(maps, config_map("a"))
    with pytest.raises(ApiError) as refused:
        client.delete(f"{maps}/a", uid="7f0f6c0e-0000-0000-0000-000000000000")
    assert refused.value.status == 409
    assert client.get(f"{maps}/a")


def test_apply_leaves_the_fields_of_others_alone(client, maps):
    client.apply(f"{maps}/a", config_map("a", ours="1"))
    client.merge(f"{maps}/a", {"data": {"theirs": "2"}})
    assert client.apply(f"{maps}/a", config_map("a", ours="3"))["data"] == {"ours": "3", "theirs": "2"}


def test_a_wrong_token_is_an_answer(kube):
    client = Client(access_of_kubeconfig(kube.kubeconfig_for("not-a-token")))
    with pytest.raises(ApiError) as refused:
        client.get("/api/v1/namespaces")
    assert refused.value.status == 401


def test_what_may_be_repeated_is_repeated_when_its_answer_is_lost(proxy, faulty, maps):
    faulty.create(maps, config_map("a"))
    proxy.faults = Faults(lose_answer=0.2, drop=0.2)
    for number in range(60):
        assert faulty.merge(f"{maps}/a", {"data": {"n": str(number)}})["data"]["n"] == str(number)
        assert faulty.get(f"{maps}/a")["data"]["n"] == str(number)
    assert min(proxy.done["lose_answer"], proxy.done["drop"]) > 10


def test_a_create_is_sent_once_and_its_repeat_finds_the_object(proxy, faulty, client, maps):
    proxy.faults = Faults(lose_answer=1)
    with pytest.raises(EngineUnreachable):
        faulty.create(maps, config_map("a"))
    assert sum(number for key, number in proxy.requests.items() if key == ("POST", maps)) == 1
    proxy.faults = Faults()
    with pytest.raises(ApiError) as taken:
        faulty.create(maps, config_map("a"))
    assert taken.value.status == 409
    assert client.get(f"{maps}/a")


def test_hundreds_of_creates_with_lost_answers_make_as_many_objects(proxy, faulty, client, maps):
    proxy.faults = Faults(lose_answer=0.4)

    def make(number: int) -> None:
        while True:
            try:
                return faulty.create(maps, config_map(f"a{number}"))
            except EngineUnreachable:
                continue
            except ApiError as error:
                if error.status != 409:
                    raise
                return None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(CREATES)))
    made = [one["metadata"]["name"] for one in client.get(maps)["items"] if one["metadata"]["name"][0] == "a"]
    assert sorted(made) == sorted(f"a{number}" for number in range(CREATES))
    assert proxy.done["lose_answer"] > 0.3 * CREATES


def test_half_of_all_calls_put_off_fails_none(proxy, faulty, maps):
    proxy.faults = Faults(busy=0.4, failing=0.1)
    for number in range(40):
        faulty.apply(f"{maps}/a{number}", config_map(f"a{number}"))
    assert proxy.done["busy"] > 10


def test_a_server_that_is_always_busy_is_given_up_in_the_end(proxy, faulty):
    proxy.faults = Faults(busy=1)
    with pytest.raises(ApiFailed) as failed:
        faulty.get("/version")
    assert failed.value.status == 429
    assert proxy.requests["GET", "/version"] == TRIES


def test_retry_after_keeps_everybody_quiet(proxy, faulty, monkeypatch):
    def puts_off_the_first(fault: str) -> bool:
        proxy.done[fault] += 1
        return fault == "busy" and proxy.done[fault] == 1

    monkeypatch.setattr(proxy, "happens", puts_off_the_first)
    proxy.faults = Faults(retry_after="1")
    began = time.monotonic()
    assert faulty.get("/version")["major"] == "1"
    assert time.monotonic() - began > 0.9
    assert proxy.requests["GET", "/version"] == 2


@pytest.mark.parametrize("faults", [Faults(busy=1, retry_after="30"), Faults(failing=1)], ids=["busy", "ill"])
def test_what_is_behind_the_server_keeps_nobody_quiet(proxy, faulty, faults):
    proxy.faults = faults
    prometheus = prometheus_behind(faulty, "monitoring", "prometheus", 9090)
    with pytest.raises(EngineUnreachable, match="Prometheus does not answer"):
        prometheus("/api/v1/query", {"query": "up"})
    assert sum(proxy.requests.values()) == 1
    assert faulty.bucket.acquire(URGENT, 0)


def test_the_rate_is_never_above_the_cap(proxy):
    proxy.faults = Faults(busy=0.5)
    client = Client(proxy.access(), TokenBucket(rate_per_second=50, burst=5))
    began = time.monotonic()

    def ask(_: int) -> None:
        try:
            client.get("/version")
        except ApiFailed:
            return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(40)))
    assert proxy.requests["GET", "/version"] <= 5 + 50 * (time.monotonic() - began) + 1
    client.close()


def test_a_silent_server_costs_the_time_out_and_no_more(proxy, faulty):
    faulty.get("/version")
    before = faulty.calls.total()
    proxy.freeze()
    with pytest.raises(EngineUnreachable, match="in time"):
        faulty.get("/version", timeout_seconds=0.5)
    assert faulty.calls.total() - before == 1


def test_nobody_there(kube):
    client = Client(Access(f"http://127.0.0.1:{free_port()}", None))
    with pytest.raises(EngineUnreachable, match="cannot be reached"):
        client.get("/version")


def test_a_certificate_of_somebody_else_is_not_trusted(kube):
    other_authority = "\n".join(
        line for line in kube.kubeconfig_text.splitlines() if "certificate-authority-data" not in line
    )
    client = Client(access_of_kubeconfig(other_authority))
    with pytest.raises(EngineUnreachable, match="do not trust each other"):
        client.get("/version")
