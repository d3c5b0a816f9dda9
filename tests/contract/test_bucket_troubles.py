"""What a bucket without an answer is called: the endpoint and the cause, and never a credential."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from controlplane.http_client import FINAL
from datasets.storage.base import Blocked
from datasets.storage.bucket import NO_SUCH_HOST, NOT_TRUSTED, Bucket, ClientConfig, _cause
from datasets.storage.bucket_config import BucketConfig
from tests.certificates import make_certificate, server_context

SECRET = "the-secret-key"
QUICK = ClientConfig(connect_seconds=2, answer_seconds=2, request_seconds=2, retry_seconds=0.1, retries=0)


def refusal(endpoint: str) -> Blocked:
    config = BucketConfig("lake", "", endpoint, "us-east-1", "the-access-key", SECRET)
    with pytest.raises(Blocked) as refused:
        Bucket(config, QUICK).put("key", b"content")
    assert endpoint in refused.value.detail
    assert SECRET not in refused.value.detail
    assert "the-access-key" not in refused.value.detail
    return refused.value


def test_a_server_that_is_gone_refuses_connections():
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    found = refusal(endpoint)
    assert found.code == "unreachable"
    assert "the connection is refused" in found.detail


@pytest.fixture
def untrusted(tmp_path: Path) -> Iterator[str]:
    """The address of a server whose certificate no authority signed."""
    context = server_context(make_certificate(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        is_over = threading.Event()

        def serve() -> None:
            while not is_over.is_set():
                with suppress(OSError):
                    context.wrap_socket(server.accept()[0], server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{server.getsockname()[1]}"
        is_over.set()
        thread.join()


def test_a_certificate_that_is_not_trusted_is_named(untrusted: str):
    found = refusal(untrusted)
    assert found.code == NOT_TRUSTED
    assert "its certificate is refused (" in found.detail


@pytest.mark.parametrize(
    ("message", "code", "words"),
    [
        ("failed to lookup address information: Name or service not known", NO_SUCH_HOST, "does not resolve"),
        (
            "failed to lookup address information: Temporary failure in name resolution",
            "unreachable",
            "name serv",
        ),
        (
            'ConnectError("tcp connect error", Os { code: 113, message: "No route to host" })',
            "unreachable",
            "route",
        ),
        ("source: reqwest::Error { kind: Request, source: TimedOut }", "unreachable", "in time"),
        ("Server returned non-2xx status code: 502: <html>", "unreachable", "answers 502"),
        ("something new", "unreachable", "answers incorrectly"),
    ],
)
def test_other_causes_are_told_apart(message: str, code: str, words: str):
    found, sentence = _cause(message)
    assert found == code
    assert words in sentence


def test_clients_give_up_at_once_for_what_an_operator_must_correct():
    assert NOT_TRUSTED in FINAL
    # The name of a service that is being restarted is denied too.
    assert NO_SUCH_HOST not in FINAL
