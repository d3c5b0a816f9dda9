"""Where the lake is: what is refused at start, and a dataset in a bucket from sync to cache."""

import socket
from pathlib import Path

import pytest
from django.conf import settings

from datasets.checks import check_lake
from datasets.queries.lake import open_lake
from datasets.storage.base import Blocked
from datasets.storage.bucket import Bucket
from datasets.storage.bucket_config import BucketConfig, bucket_config, inner_addresses
from tests.servers import free_port

KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "very-secret"}
ENDPOINT = "https://s3.example.org"


def config_of(
    url: str = "s3://lake/here", endpoint: str = ENDPOINT, file: str = "", **keys: str
) -> BucketConfig:
    found = bucket_config(url, endpoint, "us-east-1", file, keys or KEYS)
    assert found is not None
    return found


def test_a_bucket_is_named_by_an_address_and_keys_of_the_environment_or_a_file(tmp_path: Path):
    assert bucket_config("", "", "", "", {}) is None
    config = config_of()
    assert (config.bucket, config.prefix, config.secret_key) == ("lake", "here", "very-secret")
    assert config.below("7").prefix == "here/7"
    assert config_of("s3://lake").below("7").prefix == "7"
    assert "very-secret" not in repr(config)
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = other\naws_secret_access_key = of-a-file\n")
    assert config_of(file=str(file)).secret_key == "of-a-file"
    assert config_of(endpoint="", KEY="none").access_key == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "/mnt/lake"}, "s3://bucket/prefix"),
        ({"url": "s3://"}, "s3://bucket/prefix"),
        ({"url": "s3://Big_Bucket/x"}, "s3://bucket/prefix"),
        ({"url": "s3://lake/a/../b"}, "prefix"),
        ({"url": "s3://lake/a?b=c"}, "prefix"),
        ({"endpoint": "s3.example.org"}, "TRAINYARD_S3_ENDPOINT"),
        ({"endpoint": "https://me:hunter2@s3.example.org"}, "TRAINYARD_S3_ENDPOINT"),
        ({"AWS_ACCESS_KEY_ID": "id"}, "credentials"),
        ({"NONE": ""}, "credentials"),
        ({"file": "/nowhere/credentials"}, "TRAINYARD_S3_CREDENTIALS"),
    ],
)
def test_what_names_no_bucket_is_refused_without_secrets(changes: dict[str, str], words: str):
    with pytest.raises(ValueError, match=words) as caught:
        config_of(**changes)
    assert "hunter2" not in str(caught.value)


def test_a_credentials_file_is_not_quoted(tmp_path: Path):
    file = tmp_path / "credentials"
    file.write_text("very-secret\n[default\n")
    with pytest.raises(ValueError, match="cannot be read") as caught:
        config_of(file=str(file))
    assert "very-secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "[::1]", "169.254.169.254", "10.1.2.3", "192.168.0.9", "[::ffff:10.0.0.1]", "[fd00::1]"],
)
def test_an_endpoint_in_the_own_network_is_refused_unless_an_admin_allows_it(
    host: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(settings, "LAKE_BUCKET", config_of(endpoint=f"http://{host}:9000"))
    [found] = check_lake(None)
    assert (found.id, found.is_serious()) == ("trainyard.E020", True)
    assert "TRAINYARD_S3_ALLOW_PRIVATE=yes" in found.hint
    assert inner_addresses("https://8.8.8.8") == []


def test_a_server_that_is_away_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "LAKE_BUCKET", config_of(endpoint=f"http://127.0.0.1:{free_port()}"))
    monkeypatch.setattr(settings, "LAKE_MAY_BE_INSIDE", True)
    [found] = check_lake(None)
    assert (found.id, found.is_serious()) == ("trainyard.E021", False)
    assert "very-secret" not in found.msg + found.hint


@pytest.mark.parametrize("code", ["unreachable", "no_such_host", "not_trusted"])
def test_what_may_pass_without_a_restart_is_a_warning(code: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise Blocked(code, "No answer.")

    monkeypatch.setattr(settings, "LAKE_BUCKET", config_of(endpoint="https://8.8.8.8"))
    monkeypatch.setattr(Bucket, "probe", refuse)
    [found] = check_lake(None)
    assert not found.is_serious()


def test_a_lake_in_a_folder_needs_no_check():
    assert check_lake(None) == []


def test_an_endpoint_whose_name_leads_inside_after_the_start_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    inside = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: inside)
    monkeypatch.setattr(settings, "LAKE_BUCKET", config_of(endpoint="http://s3.example.org:9000"))
    monkeypatch.setattr(settings, "LAKE_DIR", tmp_path)
    with pytest.raises(Blocked, match=r"169\.254\.169\.254") as refused:
        open_lake("1")
    assert refused.value.code == "not_trusted"
