"""Users who submit jobs with idempotency keys, repeat requests without an answer, and record the acknowledged
ones."""

import http.client
import json
import random
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from tests.faults import payload
from tests.servers import ControlPlane
from tests.waiting import patience

PATIENCE_SECONDS = 30.0
AGAIN_AFTER_SECONDS = 0.2
LONGEST_REST_SECONDS = 0.6  # between two submissions: the load lasts about as long as the faults
LIVES = (
    *(["succeeds"] * 5),
    "fails",
    "succeeds at the second attempt",
    "runs until it is stopped",
    "runs until it is stopped",
)


@dataclass(slots=True)
class Submitted:
    """An acknowledged job: its request, and the state in which it must end."""

    id: str
    key: str
    body: dict[str, Any]
    life: str
    ending: str  # a final state, or "deleted"
    seconds: float  # that the POST with the answer took


@dataclass
class User:
    """A user with a token and a project of their own, and the jobs that were acknowledged."""

    running: ControlPlane
    name: str
    token: str
    dice: random.Random
    records: str
    submitted: list[Submitted] = field(default_factory=list)
    _count: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def jobs_path(self) -> str:
        return f"/api/v1/projects/team-{self.name}/jobs"

    def work(self, jobs: int) -> None:
        """Submit `jobs` jobs one after another; end those that would never end."""
        for _ in range(jobs):
            _pause(self.dice.uniform(0, LONGEST_REST_SECONDS))
            job = self.submit(self.dice.choice(LIVES))
            if not job.ending and self.dice.random() < 0.7:
                self.end(job)
        for job in self.submitted:
            if not job.ending:
                self.end(job)

    def submit(self, life: str) -> Submitted:
        """Submit a job that behaves as `life` says (see payload.AFTER) until it is acknowledged."""
        with self._lock:
            self._count += 1
            key = f"{self.name}-{self._count}"
            body = {
                "name": f"job-{self._count}",
                "kind": "train",
                "gpus": self.dice.choice([0, 0.25, 0.5, 1, 2]),
                "command": payload.command(life),
                "env": {"RECORDS": self.records},
                "retries": 1 if "second" in life else 0,
            }
            if body["gpus"] == 1:
                body["workers"] = self.dice.choice([1, 2])
        began = time.monotonic()
        _, answer = self.insist("POST", self.jobs_path, body, key)
        ending = {"fails": "failed", "runs until it is stopped": ""}.get(life, "succeeded")
        job = Submitted(answer["id"], key, body, life, ending, time.monotonic() - began)
        self.submitted.append(job)
        return job

    def end(self, job: Submitted) -> None:
        """Stop or delete a job, by chance, until that is acknowledged."""
        if self.dice.random() < 0.6:
            self.insist("POST", f"/api/v1/jobs/{job.id}/stop", None, f"{job.key}-stop")
            job.ending = "stopped"
        else:
            self.insist("DELETE", f"/api/v1/jobs/{job.id}", None, f"{job.key}-delete")
            job.ending = "deleted"

    def insist(self, method: str, path: str, body: Any, key: str) -> tuple[int, Any]:
        """Repeat a request until it succeeds; return its status and answer. Raises AssertionError for any other
        error than a broken connection or 503, and after PATIENCE_SECONDS."""
        deadline = time.monotonic() + patience(PATIENCE_SECONDS)
        while True:
            try:
                status, answer = self.call(method, path, body, key)
            except (OSError, http.client.HTTPException) as error:
                status, answer = 0, error
            if 200 <= status < 300:
                return status, answer
            is_patient = status in (0, 503) and time.monotonic() < deadline
            assert is_patient, f"{method} {path} with {key}: {status} {answer}"
            _pause(AGAIN_AFTER_SECONDS)

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, Any]:
        """Send one request; return the status and decoded JSON. `key`: an idempotency key, "" for none. Raises
        OSError or HTTPException if the connection breaks."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.running.url}{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=patience(10)) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(errors="replace")


def _pause(seconds: float) -> None:
    """Wait, as a person does between actions; there is no condition to wait for."""
    threading.Event().wait(seconds)


def make_user(running: ControlPlane, name: str, dice: random.Random, records: str) -> User:
    """Create a user with a token, who owns a project with half of the cluster as quota and limit. `records`: the
    directory of the jobs' records."""
    assert running.call("POST", "/api/v1/users", {"username": name})[0] == 201
    status, token = running.call("POST", "/api/v1/tokens", {"name": "campaign", "user": name})
    assert status == 201, token
    project = {"name": f"team-{name}", "gpu_quota": 8, "gpu_limit": 8}
    status, answer = running.call(
        "POST", "/api/v1/projects", {**project, "members": [{"user": name, "role": "owner"}]}
    )
    assert status == 201, answer
    return User(running, name, token["token"], dice, records)
