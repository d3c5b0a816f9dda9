"""A real S3 server for tests: versitygw on a directory, built from the Go module proxy outside of the checkout.
Objects are files below `root`, so that a test can damage one."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from datasets.storage.bucket_config import BucketConfig
from tests.servers import free_port
from tests.waiting import wait_until
from tools.kube.build import CannotBuild, Programs, Source, ready

VERSION = "1.8.0"
PROGRAM = "versitygw"
SERVER = Programs(
    f"{PROGRAM}-{VERSION}", (Source((PROGRAM,), (f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}",)),)
)
BUCKET, ACCESS_KEY, SECRET_KEY = "lake", "access-key-of-the-tests", "a-secret-of-the-tests"


class S3Missing(Exception):
    """There is no S3 server on this machine, and none can be built; the message says why."""


@dataclass
class S3Server:
    """A running server with one bucket; `root` has its objects."""

    port: int
    root: Path
    process: subprocess.Popen[bytes]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def config(self, prefix: str = "") -> BucketConfig:
        return BucketConfig(BUCKET, prefix, self.endpoint, "us-east-1", ACCESS_KEY, SECRET_KEY)

    def files(self, prefix: str) -> list[Path]:
        """Return the paths of the files of the objects below a prefix."""
        return [path for path in (self.root / BUCKET / prefix).rglob("*") if path.is_file()]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Context manager with a server on a free port, whose data is deleted at the end. Raises S3Missing."""
    try:
        program = ready(programs=SERVER)[PROGRAM]
    except CannotBuild as reason:
        raise S3Missing(str(reason)) from reason
    with tempfile.TemporaryDirectory(prefix="trainyard-s3-", ignore_cleanup_errors=True) as directory:
        root, beside, port = Path(directory) / "buckets", Path(directory) / "metadata", free_port()
        beside.mkdir()
        (root / BUCKET).mkdir(parents=True)
        words = f"--port 127.0.0.1:{port} --quiet posix --sidecar"
        command = [str(program), *words.split(), str(beside), str(root)]
        keys = {"ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **keys})
        server = S3Server(port, root, process)
        try:
            wait_until(lambda: _answers(server.endpoint), 30, "the S3 server's start")
            yield server
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
