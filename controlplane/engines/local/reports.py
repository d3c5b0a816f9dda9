"""Build a pod's report from its directory, and end pods whose shim is lost."""

from __future__ import annotations

import errno
import os
import signal
import time
from datetime import UTC, datetime

from controlplane.engines import base
from controlplane.engines.base import Mount, PodReport
from controlplane.engines.local import processes
from controlplane.engines.local.mpi import first_error
from controlplane.engines.local.ports import HOST
from controlplane.engines.local.records import ExitRecord, PodDir, Prepared, StartRecord
from controlplane.logstore.writer import LogWriter


def report(pod: PodDir) -> PodReport:
    """Return the state of a pod, from its records and the process table. If its shim was lost, its remaining
    processes are killed and its end is recorded."""
    ended = pod.exit_record()
    started = pod.start_record()
    # Read once: a shim that ends normally between two reads would be reported as lost.
    is_alive = started is not None and started.is_shim_alive()
    if ended is None and not is_alive:
        ended = _settle_if_there_is_room(pod, started)
    prepared = pod.prepared()
    if ended is not None:
        return _final(pod, prepared, started, ended)
    if started is None:
        return PodReport(pod.name, base.STARTING)
    if not is_alive:
        return _leftovers(pod, started)
    ports = _declared_ports(prepared) if prepared else {}
    return PodReport(pod.name, base.RUNNING, started_at=_time(started.started_ms), ports=ports)


def _declared_ports(prepared: Prepared) -> dict[int, tuple[str, int]]:
    """Return the address of each declared port, without the additional port that a launcher leases for its ranks."""
    return {
        declared: (HOST, port) for declared, port in prepared.ports.items() if declared in prepared.spec.ports
    }


def kill_stuck(pod: PodDir) -> None:
    """Kill the shim of a pod that does not react to a stop. The kernel then kills the command, and `report` the
    rest."""
    started = pod.start_record()
    if started is None:
        return
    try:
        pidfd = os.pidfd_open(started.shim_pid)
    except ProcessLookupError:
        return
    try:
        # Checked while the pidfd is open, so that the pid cannot have been reused.
        if started.is_shim_alive():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)


def _settle_if_there_is_room(pod: PodDir, started: StartRecord | None) -> ExitRecord | None:
    """Return the result of `_settle`, or None while the disk is full, so that the reports of other pods do not fail."""
    try:
        return _settle(pod, started)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        return None


def _settle(pod: PodDir, started: StartRecord | None) -> ExitRecord | None:
    """Record and return the end of a pod whose shim does not run: it was stopped before its start, or its shim was
    killed. Return None while the pod may have processes or may still start.

    Remaining processes are killed first; a later call then records the end. The pod's lock is held, so that no shim
    can start meanwhile.
    """
    with pod.locked() as is_alone:
        if not is_alone:
            # Another reader holds the lock. If the shim has ended normally since, its record exists now.
            return pod.exit_record()
        # The shim may have ended normally in the meantime.
        ended = pod.exit_record()
        started = started or pod.start_record()
        if ended is not None:
            return ended
        if started is None:
            return None if pod.stop_grace_seconds() is None else _write_end(pod, base.STOPPED)
        if started.boot_id != processes.boot_id():
            return _write_end(pod, base.NODE_LOST)
        if _kill_leftovers(pod, started):
            return None
        return _write_end(pod, base.SHIM_LOST)


def _kill_leftovers(pod: PodDir, started: StartRecord) -> bool:
    """Send SIGKILL to the pod's remaining processes; return whether there were any."""
    found = processes.table()
    prepared = pod.prepared()
    token = prepared.token if prepared else ""
    # Both searches are needed: the session finds forked processes, the token those that left the session.
    others = processes.with_token(token, started.shim_ticks, found)
    pids = {*processes.in_session(started.pid, started.ticks, found), *others}
    processes.kill(sorted(pids))
    return bool(pids)


def _write_end(pod: PodDir, reason: str) -> ExitRecord:
    record = ExitRecord(reason, None, 0, 0, time.time_ns() // 1_000_000)
    prepared = pod.prepared()
    if prepared is not None:
        writer = LogWriter(prepared.spec.log_path)
        if reason != base.STOPPED:
            writer.gap("the end of the output was lost with the pod's supervisor")
        writer.end(f"{reason} None")
        writer.close()
    pod.write_exit(record)
    return record


def _leftovers(pod: PodDir, started: StartRecord) -> PodReport:
    return PodReport(
        pod.name,
        base.FAILED,
        reason=base.SHIM_LOST,
        message=_sentence(base.SHIM_LOST, None, None),
        started_at=_time(started.started_ms),
    )


def _final(
    pod: PodDir, prepared: Prepared | None, started: StartRecord | None, ended: ExitRecord
) -> PodReport:
    reason = base.NOT_MOUNTED if _lacks_disk(ended, prepared) else ended.reason
    return PodReport(
        pod.name,
        base.SUCCEEDED if ended.exit_code == 0 else base.FAILED,
        reason=reason,
        message=_sentence(reason, ended, prepared),
        exit_code=ended.exit_code,
        started_at=_time(started.started_ms) if started else None,
        finished_at=_time(ended.finished_ms),
        is_proven_gone=True,
    )


def _lacks_disk(ended: ExitRecord, prepared: Prepared | None) -> bool:
    """Return whether a pod ended before its command because a volume or dataset was not there."""
    return ended.reason == base.CONTAINER_NOT_CREATED and any(one.is_stored for one in _missing(prepared))


def _missing(prepared: Prepared | None) -> list[Mount]:
    """Return the mounts of a pod whose directory is not there."""
    mounts = prepared.spec.mounts if prepared else ()
    return [mount for mount in mounts if not os.path.isdir(mount.source)]


def _sentence(reason: str, ended: ExitRecord | None, prepared: Prepared | None) -> str:
    program = prepared.argv[0] if prepared else ""
    code = ended.exit_code if ended else None
    error = os.strerror(ended.errno) if ended and ended.errno else ""
    work_dir = prepared.work_dir if prepared else ""
    if reason in (base.CONTAINER_NOT_CREATED, base.NOT_MOUNTED):
        # Only then: a disk that does not answer would delay the reports of all pods that have ended.
        return f"The pod's mounts could not be made: {error}. {_why_not_mounted(prepared)}"
    error_of_rank = first_error(prepared) if prepared else ""
    sentences = {
        base.COMPLETED: "The command ended with exit code 0.",
        base.EXIT_CODE: f"The command ended with exit code {code}. {error_of_rank}".rstrip(),
        base.KILLED: f"The command was killed by {_signal_name(ended)}.",
        base.STOPPED: "Stopped before it was started." if code is None else "Stopped.",
        base.OUT_OF_MEMORY: "The kernel killed the command because the machine was out of memory.",
        base.COMMAND_NOT_FOUND: f"There is no program {program!r} in the pod. Check the command and the image.",
        base.COMMAND_NOT_EXECUTABLE: f"The program {program!r} could not be run: {error}.",
        base.WORKING_DIR_MISSING: f"The working directory {work_dir!r} could not be entered: {error}.",
        base.SHIM_LOST: "The pod's supervisor was killed, and the pod with it; its exit code is not known.",
        base.NODE_LOST: "The machine restarted while the pod ran; its exit code is not known.",
    }
    return sentences.get(reason, reason)


def _why_not_mounted(prepared: Prepared | None) -> str:
    if lost := [mount.path for mount in _missing(prepared)]:
        return f"Nothing is there to mount at {', '.join(lost)}: is its disk mounted?"
    return (
        "What is mounted must be a directory of this machine, and so must the mount path, if it exists. An instance"
        " that does not run as root needs a kernel that permits user namespaces."
    )


def _signal_name(ended: ExitRecord | None) -> str:
    number = ended.signal if ended else 0
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def _time(unix_ms: int) -> datetime:
    return datetime.fromtimestamp(unix_ms / 1000, UTC)
