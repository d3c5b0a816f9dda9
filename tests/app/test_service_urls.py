"""The addresses of a job's ports, as REST, `yard` and the pages show them."""

from django.test import override_settings

from controlplane.config.service_hosts import services_host
from dashboards.templatetags.ui import port_of
from jobs.queries import service_urls

JOB = "0c5a1c4e-55c0-4cf2-8f5e-000000000000"
SPEC = {"ports": [{"port": 8888}, {"port": 6006}]}


def urls(setting: str, public_url: str) -> list[str]:
    with override_settings(SERVICES=services_host(setting, public_url, 8000), PUBLIC_URL=public_url):
        return service_urls(JOB, SPEC)


def test_on_this_machine_they_are_names_under_localhost():
    found = urls("", "http://127.0.0.1:8000")
    assert found == [f"http://{JOB}-{port}.localhost:8000/" for port in (8888, 6006)]
    assert [port_of(url) for url in found] == ["8888", "6006"]


def test_on_a_network_they_are_under_the_wildcard_name():
    found = urls("jobs.example.org", "https://yard.example.org")
    assert found == [f"https://{JOB}-{port}.jobs.example.org/" for port in (8888, 6006)]


def test_without_one_they_lead_to_the_page_that_says_so():
    found = urls("", "https://yard.example.org")
    assert found == [f"https://yard.example.org/services/{JOB}/{port}/" for port in (8888, 6006)]
    assert [port_of(url) for url in found] == ["8888", "6006"]


def test_a_job_without_ports_has_none():
    assert service_urls(JOB, {"ports": []}) == []
