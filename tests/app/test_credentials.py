"""Credentials of clusters are sealed at rest, opened under this or an earlier key, and by nobody else."""

import re

import pytest
from pytest_django import Settings

from controlplane.clusters.credentials import (
    CredentialsUnreadable,
    decrypt,
    encrypt,
    engine_settings,
    installation,
)
from controlplane.models import Cluster, Counter

SECRET = {"kubeconfig": "token: hush-hush", "context": "prod"}


def test_what_is_stored_tells_nothing_and_opens_again() -> None:
    stored = encrypt(SECRET)
    assert "hush" not in stored
    assert "prod" not in stored
    assert stored != encrypt(SECRET)
    assert decrypt(stored) == SECRET


def test_no_credentials_are_stored_as_nothing() -> None:
    assert encrypt({}) == ""
    assert decrypt("") == {}


def test_an_earlier_key_still_opens_and_a_foreign_one_says_what_to_do(settings: Settings) -> None:
    stored = encrypt(SECRET)
    earlier, settings.SECRET_KEY = settings.SECRET_KEY, "another key of this instance"
    with pytest.raises(CredentialsUnreadable, match="TRAINYARD_SECRET_KEY_FALLBACKS"):
        decrypt(stored)
    settings.SECRET_KEY_FALLBACKS = [earlier]
    assert decrypt(stored) == SECRET
    assert decrypt(encrypt(SECRET)) == SECRET


def test_a_login_program_runs_only_while_the_instance_allows_it(db: None, settings: Settings) -> None:
    cluster = Cluster(name="prod", engine="kubernetes", credentials=encrypt({**SECRET, "allow_exec": True}))
    assert engine_settings(cluster)["credentials"] == SECRET
    settings.ALLOW_KUBECONFIG_EXEC = True
    assert engine_settings(cluster)["credentials"] == {**SECRET, "allow_exec": True}


def test_an_altered_store_is_refused() -> None:
    stored = encrypt(SECRET)
    with pytest.raises(CredentialsUnreadable):
        decrypt(stored[:-6] + "AAAAAA")


@pytest.mark.django_db
def test_an_installation_has_an_id_of_its_own_that_stays() -> None:
    installation.cache_clear()  # as in another process
    first = installation()
    assert re.fullmatch("[0-9a-f]{12}", first)
    installation.cache_clear()
    assert installation() == first
    Counter.objects.filter(name="installation").delete()  # as in another database
    installation.cache_clear()
    assert installation() != first


@pytest.mark.django_db
def test_the_engine_gets_settings_credentials_and_names() -> None:
    cluster = Cluster(
        name="prod",
        engine="kubernetes",
        scheduler="kai",
        settings={"pool_label": "pool", "installation": "posing"},
        credentials=encrypt(SECRET),
    )
    assert engine_settings(cluster) == {
        "pool_label": "pool", "credentials": SECRET, "scheduler": "kai", "cluster": "prod", "has_mpi_operator": False,
        "installation": installation(),
    }  # fmt: skip
