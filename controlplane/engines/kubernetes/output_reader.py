"""Copy a directory of a job's output from the claim of its working directory.

A pod of the control plane mounts the claim read-only, and an exec in it sends the directory as a tar stream
(output_send.py). If the caller dies, a repeat uses the same pod, which otherwise ends by itself.
"""

from __future__ import annotations

import io
import json
import os
import select
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from controlplane.engines import place_files
from controlplane.engines.base import STDERR, EngineRefused, Process
from controlplane.engines.kubernetes import data_pod_objects, manifests, names, output_send
from controlplane.engines.kubernetes.config import ClusterProfile
from controlplane.engines.kubernetes.data_pods import DataPod, end_of, phase_of
from controlplane.engines.kubernetes.exec import PodProcess
from controlplane.engines.kubernetes.pod_scripts import python
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.client import Client
from datasets.storage.base import Blocked, Budget
from datasets.storage.claims import OutputTask

ROOT = "/output"
# The longest time that a copy may take: the cluster then ends the pod, also if the control plane is lost.
POD_SECONDS = 6 * 3600
SILENCE_SECONDS = 60.0
CHUNK_BYTES = 1 << 20
LONGEST_WORDS = 64 * 1024
_BLOCKED = {
    output_send.MISSING: "output_missing",
    output_send.LINKED: "output_is_link",
    output_send.UNREADABLE: "output_unreadable",
}

# Files and bytes that have arrived, and the totals that were announced.
Report = Callable[[int, int, int, int], None]


class OutputReader:
    """Copies output from the working directories of a project's jobs."""

    def __init__(self, client: Client, project: str, profile: ClusterProfile) -> None:
        self._client, self._project, self._profile = client, project, profile
        self._namespace = profile.namespace_of(project)

    def copy(self, task: OutputTask, target: Path, budget: Budget, report: Report) -> None:
        """Copy the files of a directory into the empty directory `target`. `report(files, bytes, all files, all
        bytes)` is called with the totals before any file, and then with the progress. Raise Blocked if the directory
        cannot be read, Unreachable if the cluster does not answer, and what `budget` and `report` raise."""
        name, claim = f"trainyard-output-{task.name}", names.claim_name(task.job_id, 0)
        body = data_pod_objects.pod(
            name,
            self._project,
            self._profile,
            claim=claim,
            root=ROOT,
            # It only waits for the exec.
            command=["python3", "-I", "-c", f"import time; time.sleep({POD_SECONDS})"],
            is_read_only=True,
            seconds=POD_SECONDS,
        )
        pod = DataPod(self._client, self._namespace, name, "reads the output of jobs")
        if pod.claim(claim) is None:
            words = "The working directory of the job ended with its pod, or was never made."
            raise Blocked("output_missing", words, is_passing=False)
        try:
            pod.create(body)
            started = pod.started(budget)
            if (ended := end_of(started)) is not None or phase_of(started) != "Running":
                pod.require_python(ended or {})
                raise Blocked("output_not_read", "The pod that reads the output of jobs has ended.")
            process = PodProcess(self._client.access, self._namespace, name, _command(task))
            receive(process, target, budget, report)
        except EngineRefused as refused:
            raise Blocked(refused.code, str(refused)) from refused
        finally:
            pod.remove()


def _command(task: OutputTask) -> tuple[str, ...]:
    top = manifests.CHECKPOINT_DIR.removeprefix(f"{names.WORK_DIR}/") if task.is_of_checkpoints else ""
    return (*python(output_send), ROOT, "/".join(filter(None, (top, task.path))))


def receive(process: Process, target: Path, budget: Budget, report: Report) -> None:
    """Write the tar that a process of output_send.py sends into the empty directory `target`, and end the process.
    Raises as `OutputReader.copy`."""
    stream, problem = OutputStream(process, budget, report), ""
    try:
        unpack(stream, target)
        # The exit code, which arrives after the tar, decides whether the copy is complete.
        while stream.read(CHUNK_BYTES):
            continue
    except (tarfile.TarError, OSError, EOFError) as error:
        problem = f"The output could not be copied: {error}."
    finally:
        code = process.close()
    if code != 0 or problem:
        raise stream.failure(code, problem or "The pod ended early.")


class OutputStream(io.RawIOBase):
    """The standard output of an exec as a readable file, with counters of the files and bytes that have arrived."""

    def __init__(self, process: Process, budget: Budget, report: Report) -> None:
        self._process, self._budget, self._report = process, budget, report
        self._words, self._left = bytearray(), b""
        self._announced: tuple[int, int] | None = None
        self.files, self.bytes = 0, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        if not self._left:
            self._left = self._next()
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size

    def note(self, files: int, size: int) -> None:
        """Add `files` and `size` bytes to the counters, and report the progress."""
        self.files += files
        self.bytes += size
        files, size = self._announced or (0, 0)
        self._report(self.files, self.bytes, max(files, self.files), max(size, self.bytes))

    def failure(self, code: int | None, otherwise: str) -> Blocked:
        """Return the Blocked exception for the program's exit code `code` (None: unknown). `otherwise`: the message
        for a code that is not one of the program's."""
        if code not in _BLOCKED:
            return Blocked("output_not_read", line(otherwise))
        words = bytes(self._words).decode(errors="replace").strip().splitlines()
        return Blocked(_BLOCKED[code], line(words[-1] if words else otherwise), is_passing=False)

    def _next(self) -> bytes:
        """Return the next bytes, b"" at the end. Raise Blocked after SILENCE_SECONDS without any, and what `budget`
        raises."""
        deadline = time.monotonic() + SILENCE_SECONDS
        while time.monotonic() < deadline:
            self._budget.check()
            try:
                output, data = self._process.read()
            except EOFError:
                return b""
            if not data:
                select.select([self._process], [], [], 1.0)
            elif output == STDERR:
                self._take_words(data)
            else:
                return data
        raise Blocked("output_not_read", f"The pod sent nothing for {SILENCE_SECONDS:g} s.")

    def _take_words(self, data: bytes) -> None:
        self._words = (self._words + data)[:LONGEST_WORDS]
        if self._announced is None and b"\n" in self._words:
            try:
                first = json.loads(self._words.partition(b"\n")[0])
                self._announced = int(first["files"]), int(first["bytes"])
            except (ValueError, TypeError, KeyError):
                # The first line may be invalid, because the image's python3 is not trusted; then the copy shows no
                # total.
                return
            self.note(0, 0)


def unpack(stream: OutputStream, target: Path) -> None:
    """Write a tar's files into the empty directory `target`. The sender is not trusted: no path may leave the
    directory, and no link in it is followed. Raise TarError for an entry that is no file, link or pipe, and OSError."""
    folders = place_files.Folders(target)
    try:
        with tarfile.open(
            fileobj=stream, mode="r|", encoding="utf-8", errors="surrogateescape", bufsize=CHUNK_BYTES
        ) as archive:
            for member in archive:
                # Cleared, because tarfile keeps an object in memory for every entry.
                archive.members = []  # type: ignore[attr-defined] # typeshed lacks it
                stream.note(1, 0)
                if member.isfifo():
                    place_files.check_path(member.name)
                    folder, _, name = member.name.rpartition("/")
                    os.mkfifo(name, 0o600, dir_fd=folders.open(folder))
                else:
                    place_files.place_member(
                        archive, member, folders, lambda piece: stream.note(0, len(piece))
                    )
    finally:
        folders.close()
