"""What the pod that fills caches runs: trees appear whole, share contents, and are removed; failures have names."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path

import pytest

from controlplane.engines.kubernetes import cache_fill, data_pod_objects
from controlplane.engines.kubernetes.config import ClusterProfile
from datasets.manifests import EXECUTABLE, FILE, LINK, Entry, Manifest, make_manifest
from datasets.storage.claims import CacheClaim, CacheTask
from tests.servers import CHECKOUT
from tests.serving import serving
from tests.waiting import patience

RUN, TEXT = b"#!/bin/sh\necho ran\n", b"one"
ONE = {"bin/run": (EXECUTABLE, RUN), "a": (FILE, TEXT), "b": (FILE, TEXT), "link": (LINK, b"bin/run")}


@dataclass
class Control:
    """A control plane that serves one version."""

    root: Path
    url: str = ""
    manifest: Manifest = field(default_factory=Manifest.empty)
    contents: dict[bytes, bytes] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    status: int = 200
    # What a cut connection leaves out of the end of a body; `cuts`: how it is cut (chunked or short).
    lost: int = 0
    cuts: str = ""

    def offer(self, files: dict[str, tuple[int, bytes]]) -> None:
        self.contents = {sha256(content).digest(): content for _, content in files.values()}
        self.manifest = make_manifest(
            Entry(path.encode(), kind, len(content), sha256(content).digest())
            for path, (kind, content) in files.items()
        )

    def fill(self, key: str, *keep: str) -> subprocess.CompletedProcess[str]:
        """Run the pod's command in its environment, with the paths of this machine."""
        task = CacheTask("7", keep, key, self.url, "token", self.manifest.hash)
        profile = ClusterProfile(default_image="p")
        pod = data_pod_objects.cache_pod("team", profile, CacheClaim(), task)
        container = pod["spec"]["containers"][0]
        variables = {each["name"]: each["value"] for each in container["env"]}
        _, *arguments = container["command"]
        return subprocess.run(
            [sys.executable, *arguments],
            env=variables | {cache_fill.ROOT: str(self.root)},
            capture_output=True,
            text=True,
            timeout=patience(60),
            check=False,
        )

    def tree(self, key: str) -> dict[str, str]:
        """Paths and contents of a tree's files."""
        top = self.root / "trees" / key
        return {str(path.relative_to(top)): path.read_text() for path in top.rglob("*") if path.is_file()}

    def kept(self) -> set[bytes]:
        """The contents on the volume."""
        return {path.read_bytes() for path in (self.root / "contents").rglob("*") if path.is_file()}


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    control = Control(tmp_path / "caches")
    control.root.mkdir()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            _, _, asked = self.path.partition("?places=")
            if not asked:
                self.answer(control.manifest.encode())
                return
            ranges = [one.partition("-") for one in asked.split(",")]
            places = [at for first, _, last in ranges for at in range(int(first), int(last or first) + 1)]
            control.asked += places
            wanted = dict.fromkeys(control.manifest.digest(place) for place in places)
            self.answer(b"".join(digest + control.contents[digest] for digest in wanted))

        def answer(self, body: bytes) -> None:
            assert self.headers[cache_fill.TOKEN_HEADER] == "token"
            self.send_response(control.status)
            if control.cuts == "chunked":
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"%x\r\n" % len(body) + body[: len(body) - control.lost])
                return
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - control.lost])

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, serving(server):
        control.url = f"http://127.0.0.1:{server.server_address[1]}/"
        yield control


def said(ran: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def test_a_large_file_is_reported_while_it_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By whole files, one of hours stood at 0 % without an end in sight, and the rate fell until the next jumped."""
    content, seen = b"0123456789", list[list[int]]()

    def say(*, progress: list[int]) -> None:
        seen.append(progress)

    monkeypatch.setattr(cache_fill, "CHUNK_BYTES", 4)
    monkeypatch.setattr(cache_fill, "REPORT_SECONDS", 0)
    monkeypatch.setattr(cache_fill, "say", say)
    manifest = make_manifest([Entry(b"large", FILE, len(content), sha256(content).digest())])
    (tmp_path / "contents").mkdir()
    fill = cache_fill.Fill(tmp_path, cache_fill.entries_of(manifest.encode()))
    fill.store(BytesIO(content), fill.entries)
    assert seen == [[0, 4, 4], [0, 8, 8], [0, 10, 10], [1, 10, 10]]


def test_a_tree_is_whole_read_only_and_reported(control: Control):
    control.offer(ONE)
    lines = said(control.fill("one"))
    assert lines[-2:] == [
        {"progress": [4, len(RUN) + 2 * len(TEXT) + len(b"bin/run"), len(RUN) + len(TEXT) + len(b"bin/run")]},
        {"keys": ["one"]},
    ]
    tree = control.root / "trees" / "one"
    assert control.tree("one") == {name: ONE[name][1].decode() for name in ("a", "b", "bin/run")} | {
        "link": RUN.decode()
    }
    assert [oct(path.stat().st_mode & 0o777) for path in (tree, tree / "a", tree / "bin/run")] == [
        "0o555",
        "0o444",
        "0o555",
    ]
    assert (tree / "a").stat().st_ino == (tree / "b").stat().st_ino


def test_what_is_there_is_not_brought_again_and_what_nothing_names_goes(control: Control):
    control.offer(ONE)
    said(control.fill("one"))
    control.asked.clear()
    control.offer({**ONE, "b": (FILE, b"two")})
    assert said(control.fill("two", "one"))[-1] == {"keys": ["one", "two"]}
    assert [control.manifest.paths[place] for place in control.asked] == [b"b"]
    assert control.tree("two")["b"] == "two"
    assert said(control.fill("", "one"))[-1] == {"keys": ["one"]}
    assert control.kept() == {RUN, TEXT, b"bin/run"}
    assert control.tree("one")["b"] == "one"


# Ends as by SIGKILL before the first content is looked at, when trees and manifests are gone.
KILLED = f"""
import os, signal, sys
sys.path.insert(0, {str(CHECKOUT)!r})
from controlplane.engines.kubernetes import cache_fill
cache_fill.Path.glob = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
cache_fill.main()
"""


def test_contents_that_a_pod_left_that_was_killed_after_the_manifests_go_with_the_next_task(
    control: Control, monkeypatch: pytest.MonkeyPatch
):
    control.offer(ONE)
    said(control.fill("one"))
    with monkeypatch.context() as patched:
        patched.setattr(data_pod_objects, "python", lambda _: ("python3", "-I", "-c", KILLED))
        assert control.fill("").returncode == -signal.SIGKILL
    assert control.kept() == {RUN, TEXT, b"bin/run"}
    control.offer({"c": (FILE, b"three")})
    assert said(control.fill("two"))[-1] == {"keys": ["two"]}
    assert control.kept() == {b"three"}


def test_a_damaged_leftover_of_a_killed_pod_is_brought_again(control: Control):
    control.offer(ONE)
    name = sha256(TEXT).hexdigest()
    place = control.root / "contents" / name[:2] / name[2:]
    place.parent.mkdir(parents=True)
    place.write_bytes(b"cut")
    (control.root / "trees" / "one.part").mkdir(parents=True)
    said(control.fill("one"))
    assert control.tree("one")["a"] == "one"


@pytest.mark.parametrize(
    ("status", "code"), [(404, cache_fill.MISSING), (409, cache_fill.MISSING)], ids=["gone", "lost"]
)
def test_a_version_that_is_gone_ends_it_with_its_reason(control: Control, status: int, code: int):
    control.offer(ONE)
    control.status = status
    ran = control.fill("one")
    assert (ran.returncode, ran.stderr.splitlines()[-1]) == (
        code,
        "The control plane no longer has this version or its contents.",
    )


def test_contents_that_are_not_the_versions_are_not_kept(control: Control):
    control.offer(ONE)
    control.contents[sha256(TEXT).digest()] = b"bad"
    ran = control.fill("one")
    assert ran.returncode == cache_fill.DAMAGED
    assert sha256(TEXT).hexdigest() in ran.stderr
    assert b"bad" not in control.kept()
    assert not (control.root / "trees" / "one").exists()


@pytest.mark.parametrize("cuts", ["chunked", "short"])
@pytest.mark.parametrize("what", ["the manifest", "a content"])
def test_a_connection_that_is_cut_is_no_damage_and_the_next_pod_goes_on(
    control: Control, what: str, cuts: str
):
    control.offer({"big": (FILE, b"1" * (3 << 20))})
    if what == "a content":
        manifest = control.root / "manifests" / "one"
        manifest.parent.mkdir()
        manifest.write_bytes(control.manifest.encode())
    control.lost, control.cuts = (10 if what == "the manifest" else 1 << 20), cuts
    ran = control.fill("one")
    assert ran.returncode == cache_fill.NOT_FETCHED, ran.stderr
    control.lost, control.cuts = 0, ""
    said(control.fill("one"))
    assert len(control.tree("one")["big"]) == 3 << 20


class Reset(BytesIO):
    """An answer whose connection is reset in the body."""

    def read(self, size: int | None = -1) -> bytes:
        raise ConnectionResetError(104, "Connection reset by peer")


def test_a_connection_that_is_reset_is_no_fault_of_the_volume(control: Control):
    control.offer(ONE)
    filling = cache_fill.Fill(control.root, cache_fill.entries_of(control.manifest.encode()))
    (control.root / "contents").mkdir()
    with pytest.raises(SystemExit) as left:
        filling.store(Reset(), filling.entries[:1])
    assert left.value.code == cache_fill.NOT_FETCHED


@pytest.mark.parametrize("manifest", ["none", "whole", "cut"])
def test_an_empty_directory_in_place_of_a_tree_is_filled(control: Control, manifest: str):
    control.offer(ONE)
    if manifest != "none":
        said(control.fill("one"))
        (control.root / "trees" / "one").rename(control.root / "away")
    if manifest == "cut":
        (control.root / "manifests" / "one").write_bytes(b"")
    # The kubelet makes the directory of a mount that is missing.
    (control.root / "trees" / "one").mkdir(parents=True)
    assert said(control.fill("", "one"))[-1] == {"keys": []}
    assert said(control.fill("one"))[-1] == {"keys": ["one"]}
    assert control.tree("one")["a"] == "one"


def test_contents_are_trusted_only_for_a_tree_that_is_whole(control: Control):
    control.offer(ONE)
    said(control.fill("one"))
    (control.root / "trees" / "one").rename(control.root / "away")
    (control.root / "trees" / "one").mkdir()
    name = sha256(TEXT).hexdigest()
    place = control.root / "contents" / name[:2] / name[2:]
    place.unlink()
    place.write_bytes(b"cut")
    said(control.fill("two", "one"))
    assert control.tree("two")["a"] == "one"
