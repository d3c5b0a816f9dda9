"""Tokens that name the process which holds a claim or lease.

A process that is killed leaves its claims behind; its successor on the same machine frees them at once. Claims of
processes on other machines, and of processes that hang, only end by their expiry.
"""

import hashlib
import os
import secrets
from functools import cache

from django.db.models.functions import Now

from controlplane.engines.local import processes
from controlplane.models import Command, Lease


def new_token(pid: int | None = None) -> str:
    """Return a new token of at most 32 characters for process `pid` of this machine (None: this process)."""
    ticks = _own_start_ticks(os.getpid()) if pid is None else _start_ticks(pid)
    return f"{_machine()}-{pid or os.getpid():x}-{ticks:x}-{secrets.token_hex(3)}"


def free_what_the_dead_hold() -> int:
    """Let the leases and claims of dead processes of this machine expire now. Return how many were freed."""
    freed = 0
    for name, token in Lease.objects.exclude(token="").values_list("name", "token"):
        if _is_dead(token):
            freed += Lease.objects.filter(name=name, token=token).update(token="", expires_at=Now())
    for pk, token in Command.objects.filter(finished_at=None, state=Command.CLAIMED).values_list(
        "pk", "claim_token"
    ):
        if _is_dead(token):
            held = Command.objects.claimed_by(token).filter(pk=pk)
            freed += held.update(claim_expires_at=Now(), sent_at=None)
    return freed


def _is_dead(token: str) -> bool:
    machine, *rest = token.split("-")
    return machine == _machine() and int(rest[1], 16) != _start_ticks(int(rest[0], 16))


def _start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is no such process. It distinguishes a
    process from a later one with the same PID."""
    process = processes.find(pid)
    return process.start_ticks if process else 0


@cache
def _own_start_ticks(pid: int) -> int:
    """Return when this process started, in clock ticks since boot. The result is cached by PID, because a forked
    process has its parent's cache."""
    return _start_ticks(pid)


@cache
def _machine() -> str:
    """Return an id of this boot of this machine or container: a PID means the same process only within it."""
    # PIDs are unique only within a PID namespace, such as that of a container.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(f"{processes.boot_id()} {namespace}".encode()).hexdigest()[:6]
