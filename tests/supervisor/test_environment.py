"""DATABASE_URL as managed databases hand it out; how a probe leaves the loop out."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from controlplane.config.environment import SettingInvalid, database, networks, url_prefixes
from controlplane.http.health import failing_check
from controlplane.models import Lease

URL = "postgres://yard:p%40ss@db.example.org:6432/yard"


def test_a_database_url_carries_the_options_of_its_library() -> None:
    read = database(f"{URL}?sslmode=verify-full&sslrootcert=/etc/pg/ca.pem", Path("/nowhere"))
    assert (read["HOST"], read["PORT"], read["PASSWORD"]) == ("db.example.org", "6432", "p@ss")
    assert read["OPTIONS"] == {
        "connect_timeout": 5,
        "sslmode": "verify-full",
        "sslrootcert": "/etc/pg/ca.pem",
    }


def test_an_option_that_is_none_is_refused() -> None:
    with pytest.raises(SettingInvalid, match="the option sslmod; known are sslmode,"):
        database(f"{URL}?sslmod=require", Path("/nowhere"))


def test_a_git_source_whose_scheme_never_matches_is_refused() -> None:
    name, schemes = "TRAINYARD_GIT_SOURCES", ("https", "ssh")
    found = url_prefixes({name: "https://git.example/a, ssh://git@git.example"}, name, schemes)
    assert found == ["https://git.example/a", "ssh://git@git.example"]
    for wrong in ("git://git.example", "git@git.example:team", "git.example"):
        with pytest.raises(SettingInvalid, match=f"{wrong} does not begin with one of https://, ssh://"):
            url_prefixes({name: wrong}, name, schemes)


def test_a_proxy_that_is_no_network_is_refused() -> None:
    name = "TRAINYARD_TRUSTED_PROXIES"
    assert [str(each) for each in networks({name: "10.0.0.0/8, ::1"}, name)] == ["10.0.0.0/8", "::1/128"]
    with pytest.raises(SettingInvalid, match=r"TRAINYARD_TRUSTED_PROXIES: 10\.0\.0\.1/8 has host bits set"):
        networks({name: "10.0.0.1/8"}, name)


@pytest.mark.django_db
def test_a_probe_may_leave_the_loop_out() -> None:
    assert failing_check(is_loop_needed=True) == "loop"
    assert failing_check(is_loop_needed=False) is None
    now = timezone.now()
    Lease.objects.create(name="loop", expires_at=now + timedelta(minutes=1), completed_at=now)
    assert failing_check(is_loop_needed=True) is None
