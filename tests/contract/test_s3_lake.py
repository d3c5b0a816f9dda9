"""What a lake in a bucket makes of servers that fail, hang, refuse or lose bytes."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

from datasets.ingest.engine import sync_tree
from datasets.ingest.packs import CONTENT_MOST_BYTES
from datasets.ingest.reading import ALONE_FILES
from datasets.storage.base import Blocked, ContentDamaged
from datasets.storage.bucket import Bucket, ClientConfig, KeyMissing, TooShort
from datasets.storage.bucket_config import BucketConfig
from datasets.storage.s3 import S3Lake
from datasets.storage.sinks import sink_of_bucket
from tests.contract.lake_opening import CLIENT, open_lake
from tests.contract.lakes import S3Kit
from tests.datasets import pack_of
from tests.s3_server import ACCESS_KEY, SECRET_KEY, S3Server
from tests.serving import serving

LARGE = os.urandom(CONTENT_MOST_BYTES + 1)
SHORT = ClientConfig(connect_seconds=5, answer_seconds=0.5, request_seconds=2, retry_seconds=2, retries=1)
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def answering(answer: Answer) -> Iterator[BucketConfig]:
    """A server that gives this answer to every request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    for method in ("PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.do_GET)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        url = f"http://127.0.0.1:{server.server_port}"
        yield BucketConfig("lake", "", url, "us-east-1", ACCESS_KEY, SECRET_KEY)


def status(code: int, text: bytes = b"") -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Content-Length", str(len(text)))
        request.send_header("ETag", '"1"')
        request.end_headers()
        request.wfile.write(text)

    return answer


def cut_off(request: BaseHTTPRequestHandler) -> None:
    """A body that ends before its length."""
    request.send_response(206 if request.headers.get("Range") else 200)
    request.send_header("Content-Length", "1000")
    request.send_header("Content-Range", "bytes 0-999/1000")
    request.send_header("Last-Modified", "Sun, 22 Nov 2026 12:00:00 GMT")
    request.send_header("ETag", '"1"')
    request.end_headers()
    request.wfile.write(b"only this")
    request.wfile.flush()
    request.connection.shutdown(socket.SHUT_RDWR)


def refusal(call: Callable[[], object]) -> Blocked:
    with pytest.raises(Blocked) as caught:
        call()
    return caught.value


@pytest.fixture
def bucket(s3: S3Server) -> Bucket:
    return Bucket(s3.config(f"tests/{uuid4().hex}"), CLIENT)


def test_a_server_that_answers_500_blocks_with_its_name(tmp_path: Path):
    with answering(status(500)) as config:
        bucket = Bucket(config, SHORT)
        for call in (
            lambda: bucket.put("a", b"data"),
            lambda: bucket.get("a"),
            lambda: bucket.get_range("a", 0, 4),
            lambda: bucket.delete(["a"]),
            lambda: list(bucket.list()),
            lambda: S3Lake(bucket, tmp_path / "lake"),
        ):
            blocked = refusal(call)
            assert blocked.code == "unreachable"
            assert config.endpoint in blocked.detail


def test_a_server_that_fails_for_a_moment_is_asked_again():
    calls = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        calls.append(request.command)
        status(503 if len(calls) < 3 else 200)(request)

    with answering(answer) as config:
        Bucket(
            config, replace(SHORT, retries=5, retry_seconds=60, answer_seconds=30, request_seconds=60)
        ).put("a", b"")
    assert calls == ["PUT"] * 3


def test_a_server_that_hangs_blocks_within_the_time_of_a_request():
    done = threading.Event()
    with answering(lambda _: (done.wait(60), None)[1]) as config:
        bucket = Bucket(config, replace(SHORT, retries=0))
        assert refusal(lambda: bucket.get("a")).code == "unreachable"
        assert refusal(lambda: bucket.put("a", b"data")).code == "unreachable"
        done.set()


def test_a_server_that_is_not_there_blocks():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: refused
        config = BucketConfig("lake", "", f"http://127.0.0.1:{held.getsockname()[1]}", "us-east-1", "a", "b")
        assert refusal(lambda: Bucket(config, SHORT).get("a")).code == "unreachable"


def test_a_body_that_ends_early_is_no_content():
    with answering(cut_off) as config:
        bucket = Bucket(config, replace(SHORT, retries=0))
        for call in (lambda: bucket.get("a"), lambda: bucket.get_range("a", 0, 1000)):
            assert refusal(call).code == "unreachable"


def test_wrong_credentials_and_a_missing_bucket_are_named_without_secrets(
    s3: S3Server, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    config = s3.config()
    wrong = {
        "not_writable": (
            replace(config, secret_key="not-the-secret"),
            replace(config, access_key="somebody", secret_key="not-the-secret"),
        ),
        "no_bucket": (replace(config, bucket="nowhere"),),
    }
    for code, places in wrong.items():
        for one in places:
            bucket = Bucket(one, CLIENT)
            for call in (
                lambda bucket=bucket: bucket.put("a", b"data"),
                lambda bucket=bucket: bucket.get("a"),
                lambda bucket=bucket: bucket.probe("probe"),
            ):
                blocked = refusal(call)
                assert blocked.code == code
                assert blocked.__cause__ is None
                assert blocked.__suppress_context__
                for secret in (ACCESS_KEY, SECRET_KEY, "not-the-secret"):
                    assert secret not in blocked.detail + caplog.text + repr(one)


def test_a_probe_leaves_nothing(s3: S3Server, bucket: Bucket):
    bucket.probe("probe")
    assert list(bucket.list()) == []


def test_objects_are_moved_measured_and_missed(bucket: Bucket):
    bucket.put("a/1", b"data")
    bucket.move("a/1", "b/1")
    assert bucket.size("b/1") == 4
    assert bucket.get_ranges("b/1", [1, 0, 2], [2, 0, 2]) == [b"at", b"", b"ta"]
    for call in (
        lambda: bucket.get("a/1"),
        lambda: bucket.size("a/1"),
        lambda: bucket.move("a/1", "c"),
        lambda: bucket.get_range("a/1", 0, 1),
    ):
        with pytest.raises(KeyMissing):
            call()
    for start, length in ((0, 5), (4, 1), (100, 10)):
        with pytest.raises(TooShort):
            bucket.get_range("b/1", start, length)
    bucket.delete(["b/1", "never"])
    assert list(bucket.list()) == []


def test_a_large_slice_of_a_file_arrives_by_a_multipart_upload(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    data = os.urandom(12 << 20)
    (tmp_path / "file").write_bytes(data)
    monkeypatch.setattr("datasets.storage.bucket.PART_BYTES", 5 << 20)
    bucket.put_slice("large", tmp_path / "file", 100, 11 << 20)
    assert bucket.get("large") == data[100 : 100 + (11 << 20)]


def test_an_object_that_is_cut_off_is_damaged_content(s3: S3Server, tmp_path: Path):
    kit = S3Kit(tmp_path / "lake", s3, f"tests/{uuid4().hex}")
    lake = open_lake(kit.spec())
    contents = [b"one", b"two", b"three"]
    lake.put_pack(memoryview(pack_of(*contents)))
    [path] = s3.files(f"{kit.prefix}/packs")
    os.truncate(path, 4)
    one, two, three = (sha256(content).digest() for content in contents)
    with pytest.raises(ContentDamaged):
        lake.read(three)
    found = lake.verify([one, two, three])
    assert set(found.quarantined) == {two, three}
    assert lake.lacking([one, two, three]) == {two, three}
    lake.put_pack(memoryview(pack_of(*contents)))
    assert not lake.verify([one, two, three]).quarantined
    lake.close()


def test_a_process_killed_while_it_makes_the_index_again_leaves_none(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    kit = S3Kit(tmp_path / "lake", s3, f"tests/{uuid4().hex}")
    first = open_lake(kit.spec())
    first.put_pack(memoryview(pack_of(b"one")))
    first.close()
    kit.lose_index()
    with monkeypatch.context() as patch:
        patch.setattr(S3Lake, "_places_in", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            open_lake(kit.spec())
    again = open_lake(kit.spec())
    assert not again.lacking([sha256(b"one").digest()])
    again.close()


def test_worker_processes_write_into_a_bucket(s3: S3Server, tmp_path: Path):
    """They start without packages."""
    kit, source = S3Kit(tmp_path / "lake", s3, f"tests/{uuid4().hex}"), tmp_path / "source"
    source.mkdir()
    for number in range(ALONE_FILES):
        (source / str(number)).write_text(f"content {number}")
    (source / "large").write_bytes(LARGE)
    found = sync_tree(source, sink_of_bucket(kit.root, s3.config(kit.prefix)), workers=2)
    assert found.manifest is not None
    lake = open_lake(kit.spec())
    assert not lake.verify(found.manifest.contents()).missing
    assert lake.read(sha256(LARGE).digest()) == LARGE
    lake.close()
