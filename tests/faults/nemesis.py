"""Draws faults from a seed and does them to a running control plane; its schedule is kept for the report."""

import logging
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import redis

from tests.servers import ControlPlane

logger = logging.getLogger(__name__)

PAUSE_SECONDS = (0.6, 1.6)
FREEZE_SECONDS = 2.0


class Nemesis:
    """`run` until `stop`. `probe` is called while Redis is frozen and must return soon."""

    def __init__(self, running: ControlPlane, dice: random.Random, probe: Callable[[], None]) -> None:
        self.running, self.dice, self.probe = running, dice, probe
        self.schedule: list[str] = []
        self._is_stopping = threading.Event()
        self._began = time.monotonic()
        self._deeds: list[Callable[[], str]] = [
            *(lambda name=name: self.kill(name) for name in ("web", "worker", "worker", "beat", "redis")),
            self.flush,
            self.freeze,
        ]

    def run(self) -> None:
        """One fault after another. Every deed is done once, in drawn order, before any is done again."""
        while not self._is_stopping.is_set():
            for deed in self.dice.sample(self._deeds, len(self._deeds)):
                if self._is_stopping.wait(self.dice.uniform(*PAUSE_SECONDS)):
                    return
                at = time.monotonic() - self._began
                self.schedule.append(deed())
                logger.warning("%5.1f s  %s", at, self.schedule[-1])

    def stop(self) -> None:
        self._is_stopping.set()

    def kill(self, name: str) -> str:
        """SIGKILL, if it lives at the moment."""
        process = self.running.children().get(name)
        if process is None:
            return f"{name} is not up yet"
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return f"{name} had just gone"
        return f"kill -9 {name}"

    def flush(self) -> str:
        """Empty Redis."""
        socket_path = Path(self.running.state_dir) / "redis" / "redis.sock"
        client = redis.Redis(unix_socket_path=str(socket_path), socket_timeout=1)
        try:
            client.flushall()
        except redis.RedisError as error:
            return f"FLUSHALL found no Redis ({type(error).__name__})"
        finally:
            client.close()
        return "FLUSHALL"

    def freeze(self) -> str:
        """SIGSTOP Redis for a while, and submit meanwhile."""
        process = self.running.children().get("redis")
        if process is None:
            return "redis is not up yet"
        process.send_signal(signal.SIGSTOP)
        try:
            thawing = time.monotonic() + FREEZE_SECONDS
            self.probe()
            self._is_stopping.wait(max(0.0, thawing - time.monotonic()))
        finally:
            process.send_signal(signal.SIGCONT)
        return f"redis frozen for {FREEZE_SECONDS:g} s"
