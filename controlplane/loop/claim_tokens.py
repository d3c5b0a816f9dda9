"""Tokens that identify the process which holds a claim.

A process that was killed leaves its claims behind; its successor on the same machine frees them at once. For
processes on other machines, and processes that hang, the expiry remains the only protection.
"""

import hashlib
import os
import secrets
from functools import cache

from django.db.models.functions import Now

from controlplane.engines.local import processes
from controlplane.models import Command, Lease


def new_token(pid: int | None = None) -> str:
    """Return a token of at most 32 characters for this process, or for process `pid` of this machine."""
    ticks = _own_start_ticks(os.getpid()) if pid is None else _start_ticks(pid)
    return f"{_machine()}-{pid or os.getpid():x}-{ticks:x}-{secrets.token_hex(3)}"


def free_what_the_dead_hold() -> int:
    """Expire the leases and claims of processes of this machine that have died; return how many."""
    freed = 0
    for name, token in Lease.objects.exclude(token="").values_list("name", "token"):
        if _is_dead(token):
            freed += Lease.objects.filter(name=name, token=token).update(token="", expires_at=Now())
    for pk, token in Command.objects.filter(state=Command.CLAIMED).values_list("pk", "claim_token"):
        if _is_dead(token):
            held = Command.objects.claimed_by(token).filter(pk=pk)
            freed += held.update(claim_expires_at=Now(), sent_at=None)
    return freed


def _is_dead(token: str) -> bool:
    machine, *rest = token.split("-")
    return machine == _machine() and int(rest[1], 16) != _start_ticks(int(rest[0], 16))


def _start_ticks(pid: int) -> int:
    """Return the start time of a live process in clock ticks since boot, 0 if there is none; guards against PID
    reuse."""
    process = processes.find(pid)
    return process.start_ticks if process else 0


@cache
def _own_start_ticks(pid: int) -> int:
    """Return the start time of this process. By pid, because a forked process has the cache of its parent."""
    return _start_ticks(pid)


@cache
def _machine() -> str:
    """Return an id of this boot of this machine or container; PIDs are comparable only within it."""
    # PIDs are unique only within a PID namespace, such as that of a container.
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(f"{processes.boot_id()} {namespace}".encode()).hexdigest()[:6]
