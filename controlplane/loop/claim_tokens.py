"""Whose claim it is. A token names its process, so that a restart after kill -9 goes on at once instead of waiting
for what the dead process held to expire. The expiry stays what makes claims safe: it alone counts for processes of
other machines, and for those that hang.
"""

import hashlib
import os
import secrets
from functools import cache

from django.db.models.functions import Now

from controlplane.engines.local import processes
from controlplane.models import Command, Lease


def new_token(pid: int | None = None) -> str:
    """A token of at most 32 characters for a claim of this process, or of another one of this machine."""
    pid = pid or os.getpid()
    return f"{_machine()}-{pid:x}-{_start_ticks(pid):x}-{secrets.token_hex(3)}"


def free_what_the_dead_hold() -> int:
    """End leases and claims of this machine's processes that are no more; return how many."""
    freed = 0
    for name, token in Lease.objects.exclude(token="").values_list("name", "token"):
        if _is_dead(token):
            freed += Lease.objects.filter(name=name, token=token).update(token="", expires_at=Now())
    for pk, token in Command.objects.filter(state=Command.CLAIMED).values_list("pk", "claim_token"):
        if _is_dead(token):
            held = Command.objects.filter(pk=pk, state=Command.CLAIMED, claim_token=token)
            freed += held.update(claim_expires_at=Now(), sent_at=None)
    return freed


def _is_dead(token: str) -> bool:
    machine, *rest = token.split("-")
    return machine == _machine() and int(rest[1], 16) != _start_ticks(int(rest[0], 16))


def _start_ticks(pid: int) -> int:
    """The kernel's start time of a living process, 0 when there is none: a pid alone is used again."""
    process = processes.find(pid)
    return process.start_ticks if process else 0


@cache
def _machine() -> str:
    """This boot of this machine, or this container of it: pids mean nothing elsewhere."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    return hashlib.sha256(f"{processes.boot_id()} {namespace}".encode()).hexdigest()[:6]
