"""Run an elastic training on this machine without Trainyard: `python -m workloads.elastic.launch --workers 3
[-- ...]`.

`Crew` owns the membership as the control plane does: it starts workers by fork from a process that has
imported torch, publishes generations, and forms a new one when a worker ends. Tests and bench/elastic use it
too.

TRAINYARD_ELASTIC_FROZEN_SECONDS (5): a member without a heartbeat for this long is killed.
TRAINYARD_ELASTIC_FORM_SECONDS (1.5): time limit for running members to connect. Increase both on a slow
machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch  # noqa: F401  takes seconds: here once for all workers

from workloads.common import membership
from workloads.common.membership import Mailbox, Member, Membership, Status

TICK_SECONDS = 0.004
FROZEN_SECONDS = float(os.environ.get("TRAINYARD_ELASTIC_FROZEN_SECONDS", "5"))


@dataclass(slots=True)
class Worker:
    """One worker process. `exit_code`: None while it runs, negative for a signal."""

    id: int
    pid: int
    folder: Path
    mailbox: Mailbox
    exit_code: int | None = None

    @property
    def status(self) -> Status | None:
        return self.mailbox.status()

    @property
    def is_alive(self) -> bool:
        return self.exit_code is None

    @property
    def has_left(self) -> bool:
        """Return whether the worker has completed the last step for which it is needed."""
        status = self.status
        return status is not None and status.state == membership.LEFT

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


class Crew:
    """The workers of one training and their membership. `folder`: where each worker gets a new directory;
    `program`: runs in each worker and returns its exit code; `min_workers`: with fewer no generation is formed.
    Call `tick` frequently, or wait with `until`."""

    def __init__(self, folder: Path, program: Callable[[], int], min_workers: int = 1) -> None:
        self._folder, self._program, self._min_workers = folder, program, min_workers
        self.workers: dict[int, Worker] = {}
        self.members: tuple[int, ...] = ()
        self.generation = 0
        self._loss = 0
        # Of the generation before; its last step needs them too.
        self._leavers: tuple[int, ...] = ()

    def start(self, count: int) -> list[int]:
        """Fork `count` workers, which prepare while the training continues. Return their numbers."""
        first = len(self.workers)
        return [self._fork(number).id for number in range(first, first + count)]

    def is_ready(self, numbers: Sequence[int]) -> bool:
        """Return whether all workers with these numbers have written their first status, so that `publish` may
        name them."""
        return all(self.workers[number].status is not None for number in numbers)

    def publish(self, numbers: Sequence[int], *, is_loss: bool = False) -> int:
        """Publish a generation with these workers as members; all must be ready. Return its number. `is_loss`:
        the previous generation lost a member and cannot complete its step."""
        statuses = {number: self.workers[number].status for number in numbers}
        members = tuple(Member(number, status.address) for number, status in statuses.items() if status)
        before, self.members = self.members, tuple(member.id for member in members)
        self._leavers = () if is_loss else tuple(set(before) - set(self.members))
        self.generation += 1
        self._loss = self.generation if is_loss else self._loss
        for worker in self.workers.values():
            if worker.is_alive:
                worker.mailbox.publish(Membership(self.generation, members, self._loss))
        return self.generation

    def tick(self) -> None:
        """Handle ended workers, kill frozen ones, and form a new generation if necessary."""
        for worker in self.workers.values():
            if worker.is_alive:
                self._look_after(worker)
        alive = [number for number in self.members if self.workers[number].is_alive]
        if len(alive) < self._min_workers or not alive:
            return
        is_gone = len(alive) < len(self.members) and not self._is_over()
        if is_gone or self._is_broken(alive) or self._has_lost_leaver(alive):
            self.publish(alive, is_loss=True)

    def until(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Call `tick` until `is_so` returns True. Raises TimeoutError after `seconds`, with the workers' last
        output."""
        end = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > end:
                raise TimeoutError("\n".join(f"{one.id}: {one.log[-400:]}" for one in self.workers.values()))
            self.tick()
            time.sleep(TICK_SECONDS)

    def steps(self) -> int:
        """Return the highest number of completed steps that a member reports; 0 without members."""
        return max((self._step_of(number) for number in self.members), default=0)

    def kill(self, number: int, which: int = signal.SIGKILL) -> None:
        """Send the signal `which` to a worker if it is running."""
        if self.workers[number].is_alive:
            os.kill(self.workers[number].pid, which)

    def close(self) -> None:
        """Kill the workers that still run and wait for them."""
        for worker in self.workers.values():
            if worker.is_alive:
                os.kill(worker.pid, signal.SIGKILL)
                worker.exit_code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])

    def _look_after(self, worker: Worker) -> None:
        pid, waited = os.waitpid(worker.pid, os.WNOHANG)
        if pid:
            worker.exit_code = os.waitstatus_to_exitcode(waited)
            return
        beat = worker.folder / membership.STATUS
        is_needed = worker.id in (*self.members, *self._leavers)
        if is_needed and time.time() - beat.stat().st_mtime > FROZEN_SECONDS and not worker.has_left:
            os.kill(worker.pid, signal.SIGKILL)

    def _is_over(self) -> bool:
        """Return whether members have begun to exit because the training is over."""
        return any(self.workers[number].exit_code == 0 for number in self.members)

    def _is_broken(self, alive: Sequence[int]) -> bool:
        """Return whether all members abandoned this generation although all of them are alive, or one has waited
        for the next one for a while."""
        statuses = [self.workers[number].status for number in alive]
        broken = [
            one is not None
            and one.state == membership.BROKEN
            # Members that have finished join no newer generation either.
            and (one.generation == self.generation or self._is_over())
            for one in statuses
        ]
        stuck = (one is not None and one.is_stuck for one in statuses)
        return all(broken) or any(
            is_broken and is_stuck for is_broken, is_stuck in zip(broken, stuck, strict=True)
        )

    def _has_lost_leaver(self, alive: Sequence[int]) -> bool:
        """Return whether a leaving worker died in a step that it had to complete with the members, which may be
        waiting for it. `alive`: numbers of the workers that run."""
        lost = [self.workers[number] for number in self._leavers if not self.workers[number].is_alive]
        if all(worker.has_left for worker in lost):
            return False
        statuses = [self.workers[number].status for number in alive]
        return any(one is None or one.generation < self.generation for one in statuses)

    def _step_of(self, number: int) -> int:
        status = self.workers[number].status
        return 0 if status is None else status.step

    def _fork(self, number: int) -> Worker:
        folder = self._folder / str(number)
        folder.mkdir(parents=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._run(number, folder)
        worker = Worker(number, pid, folder, Mailbox(folder))
        self.workers[number] = worker
        return worker

    def _run(self, number: int, folder: Path) -> None:
        """Run the worker in the child process; never returns."""
        code = 1
        try:
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.environ |= {membership.DIRECTORY: str(folder), "TRAINYARD_RANK": str(number)}
            code = self._program()
        finally:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            sys.stdout.flush()
            sys.stderr.flush()
            # Not sys.exit: the child must not run the exit handlers of the process that forked it.
            os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train with this number of workers to the end; a worker that dies is not replaced. Return the highest exit code
    of a worker, without the sign that marks a signal."""
    from workloads.elastic.train import main as train

    parser = argparse.ArgumentParser(prog="workloads.elastic.launch", description="Elastic training, alone.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("rest", nargs="*", help="arguments of workloads.elastic.train")
    options = parser.parse_args(arguments)
    os.environ["TRAINYARD_WORLD_SIZE"] = str(options.workers)
    with tempfile.TemporaryDirectory() as folder:
        crew = Crew(Path(folder), lambda: train(options.rest))
        try:
            numbers = crew.start(options.workers)
            crew.until(lambda: crew.is_ready(numbers), 60)
            crew.publish(numbers)
            crew.until(lambda: all(not worker.is_alive for worker in crew.workers.values()), 86_400)
            print("".join(worker.log for worker in crew.workers.values()), end="")
            return max(abs(worker.exit_code or 0) for worker in crew.workers.values())
        finally:
            crew.close()


if __name__ == "__main__":
    raise SystemExit(main())
