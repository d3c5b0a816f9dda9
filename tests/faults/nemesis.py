"""Injects faults into a running control plane, in an order drawn from a seed. Records them in `schedule` for the
report."""

import logging
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psutil
import redis

from tests.servers import ControlPlane
from tests.waiting import patience

logger = logging.getLogger(__name__)

PAUSE_SECONDS = (0.6, 1.6)
FREEZE_SECONDS = 2.0
WINDOW_SECONDS = 2.0
CLAIMED = "SELECT id FROM controlplane_command WHERE state = 'claimed'"


class Nemesis:
    """Injects faults from `run` until `stop`. `probe` is called while Redis is frozen, and must return soon."""

    def __init__(self, running: ControlPlane, dice: random.Random, probe: Callable[[], None]) -> None:
        self.running, self.dice, self.probe = running, dice, probe
        self.schedule: list[str] = []
        self._is_stopping = threading.Event()
        self._began = time.monotonic()
        self._deeds: list[Callable[[], str]] = [
            *(lambda name=name: self.kill(name) for name in ("web", "worker", "worker", "tasks", "redis")),
            self.flush,
            self.freeze,
            self.kill_amid_a_command,
        ]

    def run(self) -> None:
        """Inject one fault after another until `stop`. Each kind occurs once, in random order, before any occurs
        again."""
        while not self._is_stopping.is_set():
            for deed in self.dice.sample(self._deeds, len(self._deeds)):
                if self._is_stopping.wait(self.dice.uniform(*PAUSE_SECONDS)):
                    return
                at = time.monotonic() - self._began
                self.schedule.append(deed())
                logger.warning("%5.1f s  %s", at, self.schedule[-1])

    def stop(self) -> None:
        self._is_stopping.set()

    def kill(self, name: str, process: psutil.Process | None = None) -> str:
        """Send SIGKILL to a process of the control plane (`process`, else the one named `name`). Return what
        happened."""
        process = process or self.running.children().get(name)
        if process is None:
            return f"{name} is not up yet"
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return f"{name} had just gone"
        return f"kill -9 {name}"

    def kill_amid_a_command(self) -> str:
        """Send SIGKILL to the worker after it has claimed a command and before it records the result. Return what
        happened."""
        worker = self.running.children().get("worker")
        if worker is None:
            return "worker is not up yet"
        rows = sqlite3.connect(f"file:{self.running.state_dir}/db.sqlite3?mode=ro", uri=True)
        with closing(rows):
            deadline = time.monotonic() + WINDOW_SECONDS
            while time.monotonic() < deadline:
                if rows.execute(CLAIMED).fetchone():
                    self.kill("worker", worker)
                    worker.wait(patience(5))
                    left = len(rows.execute(CLAIMED).fetchall())
                    return f"kill -9 worker, which held {left} commands"
        return "the worker had no command to be killed in"

    def flush(self) -> str:
        """Delete all keys in Redis. Return what happened."""
        socket_path = Path(self.running.state_dir) / "redis" / "redis.sock"
        client = redis.Redis(unix_socket_path=str(socket_path), socket_timeout=1)
        try:
            for key in client.scan_iter():  # FLUSHALL is not among our account's rights
                client.delete(key)
        except redis.RedisError as error:
            return f"there was no Redis to be emptied ({type(error).__name__})"
        finally:
            client.close()
        return "emptied Redis"

    def freeze(self) -> str:
        """Stop Redis for FREEZE_SECONDS, and at least until `probe` returns. Return what happened."""
        process = self.running.children().get("redis")
        if process is None:
            return "redis is not up yet"
        # a web server that has just been killed comes back first
        self.running.call("GET", "/healthz", timeout=60)
        process.send_signal(signal.SIGSTOP)
        try:
            thawing = time.monotonic() + FREEZE_SECONDS
            self.probe()
            self._is_stopping.wait(max(0.0, thawing - time.monotonic()))
        finally:
            process.send_signal(signal.SIGCONT)
        return f"redis frozen for {FREEZE_SECONDS:g} s"
