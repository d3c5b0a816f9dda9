"""Names of jobs' hosts, there and back."""

import pytest

from controlplane.config.environment import SettingInvalid
from controlplane.config.service_hosts import ServiceAddress, services_host

JOB = "0c5a1c4e-55c0-4cf2-8f5e-000000000000"
NOTEBOOK = ServiceAddress(JOB, 8888)
LOCAL = services_host("", "http://127.0.0.1:8000", 8000)


def test_by_default_names_are_under_localhost_on_the_servers_port():
    assert LOCAL.origin(NOTEBOOK) == f"http://{JOB}-8888.localhost:8000"
    assert LOCAL.find(f"{JOB}-8888.localhost:8000") == NOTEBOOK
    assert len(NOTEBOOK.label) <= 63


@pytest.mark.parametrize(
    ("setting", "public_url", "origin"),
    [
        ("jobs.example.org", "https://yard.example.org", f"https://{JOB}-8888.jobs.example.org"),
        ("Jobs.Example.org", "https://yard.example.org:8443", f"https://{JOB}-8888.jobs.example.org:8443"),
        ("jobs.example.org:444", "https://yard.example.org", f"https://{JOB}-8888.jobs.example.org:444"),
        ("jobs.lan", "http://yard.lan:8000", f"http://{JOB}-8888.jobs.lan:8000"),
    ],
)
def test_a_wildcard_name_has_scheme_and_port_of_the_public_address(
    setting: str, public_url: str, origin: str
):
    services = services_host(setting, public_url, 8000)
    assert services.origin(NOTEBOOK, "yard.example.org:1") == origin
    assert services.own_origin(public_url, "x:1") == public_url
    assert services.is_reachable_from("10.0.0.5")


@pytest.mark.parametrize(
    "setting",
    ["https://jobs.example.org", "*.jobs.example.org", "jobs.example.org/x", "jobs..org", "-a.org", "10.0.0.1",
     "jobs.example.org:", "jobs.example.org:0", "jobs.example.org:99999", "a b", "x" * 64, ".".join(["x" * 60] * 4)],
)  # fmt: skip
def test_what_is_no_name_is_refused(setting: str):
    with pytest.raises(SettingInvalid, match="TRAINYARD_SERVICES_HOST must be a host name"):
        services_host(setting, "https://yard.example.org", 8000)


@pytest.mark.parametrize(
    "host",
    ["localhost:8000", "", f"{JOB}-8888", f"{JOB}.localhost", f"{JOB}-0.localhost", f"{JOB}-08.localhost",
     f"{JOB}-65536.localhost", f"{JOB}-8888.localhost.", f"x.{JOB}-8888.localhost", f"{JOB}-8888.localhost.evil.org",
     f"{JOB}-8888.evillocalhost", f"{JOB}-8888.localhost:8000:1", f"{JOB}-8888.localhost:x", f"{JOB}-8888..localhost",
     f"{JOB}-8888.localhost@evil.org", f"{JOB[:-1]}-8888.localhost", f"{JOB}-8888.localhost\n"],
)  # fmt: skip
def test_other_names_are_no_jobs(host: str):
    assert LOCAL.find(host) is None


def test_names_of_hosts_have_no_case():
    assert LOCAL.find(f"{JOB.upper()}-8888.LocalHost:1") == NOTEBOOK


@pytest.mark.parametrize(
    ("own_host", "is_reachable"),
    [("127.0.0.1:8000", True), ("localhost", True), ("[::1]:8000", True), ("0.0.0.0:8000", True), ("127.9.9.9", True),
     ("10.0.0.5:8000", False), ("yard.example.org", False), ("localhost.example.org", False)],
)  # fmt: skip
def test_names_under_localhost_are_for_browsers_of_this_machine(own_host: str, is_reachable: bool):
    assert LOCAL.is_reachable_from(own_host) == is_reachable


def test_a_tunnel_with_another_port_is_followed_both_ways():
    assert LOCAL.origin(NOTEBOOK, "localhost:9000") == f"http://{JOB}-8888.localhost:9000"
    assert LOCAL.own_origin("http://127.0.0.1:8000", f"{JOB}-8888.localhost:9000") == "http://127.0.0.1:9000"
    assert LOCAL.own_origin("http://0.0.0.0:8000", f"{JOB}-8888.localhost:9000") == "http://localhost:9000"
    assert LOCAL.own_origin("http://[::1]:8000", "x.localhost:9000") == "http://[::1]:9000"
