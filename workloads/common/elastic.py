"""Train on a number of workers that changes while the weights stay in memory.

    with World.joined(device, replica, epochs, policy) as world:
        for step in world.steps():
            loss = mean_loss(model, step.indexes)     # 0.0 * something where indexes is empty
            loss.backward()
            if step.average(model.parameters()):      # False: a peer was lost; the same samples come again
                optimizer.step()

Under Trainyard the world follows the membership file (workloads/common/membership.py): a new generation takes effect
at a step boundary on which all members agree. A dead peer breaks the collective call of the others; they wait for the
generation without it and form again in process. Under torchrun, MPI or plain variables the world is fixed.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

from workloads.common import membership
from workloads.common.backends import form_group
from workloads.common.distributed import joined_ranks
from workloads.common.finite import not_finite
from workloads.common.groups import dissolve, give_up
from workloads.common.membership import Mailbox, Member, Membership, Status, Switch
from workloads.common.sampling import Epochs, Policy, digest_of
from workloads.common.stopping import StopRequest

# Time limit for members, all of them running, to connect to each other; increase it for slow machines or
# networks.
FORM_SECONDS = float(os.environ.get("TRAINYARD_ELASTIC_FORM_SECONDS", "1.5"))
# Longer than the owner's limit, which kills a frozen peer.
COLLECTIVE_SECONDS = 60.0
POLL_SECONDS = 0.003
LOOK = timedelta(seconds=0.05)  # between looks at the membership in a collective call that lasts
# Many beats within the owner's limit of 10 s (jobs.kinds.membership), so that a few late ones do no harm.
BEAT_SECONDS = 0.5
# How long a member that could not join, or lost its peers, waits for the next generation before it asks for one; twice
# as long after each further failure to join, at most MOST_STUCK_DOUBLINGS times: it may never reach the others.
STUCK_SECONDS = float(os.environ.get("TRAINYARD_ELASTIC_STUCK_SECONDS", "1"))
MOST_STUCK_DOUBLINGS = 6
# Repeated failures of the same members at the same step: then the cause is not a lost peer.
MOST_REFORMS = 3
# Time after SIGTERM to wait for peers to get one too; otherwise they continue without this worker.
LEAVE_ALONE_SECONDS = 2.0
HOST = "TRAINYARD_ELASTIC_HOST"


class ProgramError(Exception):
    """The program's state cannot be sent to other workers, or theirs cannot be loaded. Forming a new group
    does not help."""


class PeerLost(RuntimeError):
    """A member of this generation is gone, according to the owner of the membership."""


class Replica(Protocol):
    """State that is equal on all workers: weights, optimizer, schedule."""

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


class Step:
    """This worker's part of one training step. `indexes`: the indexes of its samples in the data set;
    `learning_rate_factor`: the factor by which the base learning rate is multiplied."""

    def __init__(self, world: World, indexes: Tensor) -> None:
        self.indexes = indexes
        self.number = world.step + 1
        self.learning_rate_factor = world.learning_rate_factor
        self.is_complete = False
        self._world = world

    def average(self, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Replace the gradients of `parameters` by their mean over all samples of the step. Return False if a
        peer was lost: the gradients are then invalid and the step must not be applied. Raises LossNotFinite, on
        all workers alike, if the mean is not finite."""
        tensors = [parameter for parameter in parameters if parameter.requires_grad]
        self.is_complete = self._world.average(tensors, self.indexes)
        return self.is_complete


class World:
    """The workers that train together now. `has_left`: this worker is no longer a member. `is_stopped`: the
    job is being stopped, and the state is that of a step boundary."""

    def __init__(self, device: torch.device, replica: Replica, epochs: Epochs, policy: Policy) -> None:
        self.device, self.replica, self.epochs, self.policy = device, replica, epochs, policy
        self.rank, self.size, self.generation, self.step = 0, 1, 0, 0
        self.has_left = self.is_stopped = False
        self._stop = StopRequest()
        self._stopped_at: float | None = None
        self._size_before, self._switched_at_step = 1, -(10**9)
        # True until this worker has received the state, or has sent its own.
        self._has_state = False
        # Number of the newest generation that any member has received.
        self._agreed = 0
        self._seen, self._digest = 0, 0
        self._stepped_at = time.monotonic()
        self._busy_since = time.monotonic()
        self._member: _Membered | None = None

    @classmethod
    @contextmanager
    def joined(
        cls, device: torch.device, replica: Replica, epochs: Epochs, policy: Policy, first_step: int = 0
    ) -> Iterator[World]:
        """Context manager that joins the job's workers and leaves at its end. Blocks until this worker is a
        member. `first_step`: completed steps of the checkpoint from which `replica` was loaded."""
        world = cls(device, replica, epochs, policy)
        world.step = first_step
        if membership.DIRECTORY not in os.environ:
            if "TORCHELASTIC_RUN_ID" in os.environ:
                # torchrun ends workers that wait for a lost peer by SIGTERM; handling the signal would delay
                # it by 30 s.
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            with joined_ranks(device) as rank_info:
                world._enter(rank_info.rank, rank_info.world_size, 1)
                world._agree_on_state()
                yield world
            return
        world._member = _Membered(world, Path(os.environ[membership.DIRECTORY]))
        try:
            world._member.switch(is_planned=True)
            yield world
        finally:
            world._member.close()

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_asked_to_stop(self) -> bool:
        """Return whether this worker got SIGTERM."""
        return bool(self._stop)

    @property
    def learning_rate_factor(self) -> float:
        """Return the factor by which to multiply the base learning rate in the next step."""
        since = self.step - self._switched_at_step
        return self.policy.learning_rate_factor(self.size, self._size_before, since)

    def steps(self) -> Iterator[Step]:
        """Yield one Step at a time until the epochs are complete, the job is stopped, or this worker has left. If
        the step's `average` returned False, its samples come again, divided among the workers that remain."""
        while not (self.epochs.is_over or self.has_left or self.is_stopped):
            global_batch = self.policy.global_batch(self.size)
            step = Step(self, self.epochs.share(self.rank, self.size, global_batch))
            self._busy_since = time.monotonic()
            yield step
            if step.is_complete:
                self._complete(global_batch)

    def average(self, parameters: list[torch.nn.Parameter], indexes: Tensor) -> bool:
        """Average the gradients of `parameters` over all workers, as `Step.average` does; return as it does.
        `indexes`: this worker's samples. An error of a collective call counts as a lost peer, and a new group is
        formed; other errors are raised."""
        gradients, flat = _flattened(parameters)
        lost: BaseException | None = None
        try:
            seen = self._exchange(indexes)
            flat *= len(indexes) / max(1, seen)  # each worker weighted by its samples
            self._finish(distributed.all_reduce(flat, async_op=True))
        except (RuntimeError, distributed.DistError) as error:
            if self._member is None:
                raise
            # Clear the frames of the failed call, which hold the process group: until its connections are
            # closed, survivors that are not the lost member's neighbours in the ring wait for their own time
            # limit.
            lost = error.with_traceback(None)
        if lost is not None and self._member is not None:
            self._member.recover(lost)
            return False
        if not flat.isfinite().all():
            # The sum is equal on all workers, so all of them end here and none waits for the others.
            raise not_finite("gradients are no numbers", self.step + 1)
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        return True

    def _exchange(self, indexes: Tensor) -> int:
        """Agree with all members on what happens at the end of this step; return how many samples all of them
        have in it. `indexes`: this worker's."""
        busy = time.monotonic() - self._busy_since
        newest = self.generation if self._member is None else self._member.newest(busy)
        mine = [newest, len(indexes), digest_of(indexes), int(bool(self._stop))]
        rows = self._gather(mine)
        # Use the newest generation that any member has seen, so that all switch at the same step.
        self._agreed = max(row[0] for row in rows)
        self._seen, self._digest = sum(row[1] for row in rows), sum(row[2] for row in rows)
        self.is_stopped = self._is_stopping([bool(row[3]) for row in rows])
        return self._seen

    def _is_stopping(self, asked: list[bool]) -> bool:
        """Return whether the job ends after this step: only if all members got SIGTERM. A worker that alone got
        it leaves after LEAVE_ALONE_SECONDS. `asked`: by rank, whether the member got it."""
        if not self._stop:
            return all(asked)
        now = time.monotonic()
        self._stopped_at = self._stopped_at or now
        grace = 0.0 if self._member is None else LEAVE_ALONE_SECONDS
        if not all(asked) and now - self._stopped_at >= grace:
            self.has_left = True
        return all(asked)

    def _complete(self, global_batch: int) -> None:
        self.step += 1
        self._stepped_at = time.monotonic()
        done = self.epochs.done
        self.epochs.advance(self._seen, self._digest, global_batch)
        if self._member is not None and self.epochs.done > done:
            self._member.note_epoch()
        if self._member is not None and self._agreed > self.generation and not self.is_stopped:
            self._member.switch(is_planned=True)

    def _enter(self, rank: int, size: int, generation: int) -> None:
        self._size_before = self.size if self.generation else size
        self.rank, self.size, self.generation = rank, size, generation
        self._switched_at_step = self.step

    def _agree_on_state(self) -> int:
        """Copy the state of the most advanced member to all; ranks are at most one step apart. Return how
        many completed steps are lost, which is 0 if a member of the previous generation remains."""
        rows = self._gather([self.step, int(self._has_state), self.epochs.done])
        source = max(range(len(rows)), key=lambda rank: (rows[rank][1], rows[rank][0], -rank))
        if len({tuple(row) for row in rows}) > 1 or not rows[source][1]:
            self._share_state(source)
        return max(row[0] for row in rows) - self.step

    def _share_state(self, source: int) -> None:
        packed = io.BytesIO()
        if self.rank == source:
            with _of_the_program():
                self._save(packed)
        # Receivers need the size first, to allocate a buffer.
        size = torch.tensor([packed.tell()], device=self.device)
        self._finish(distributed.broadcast(size, source, async_op=True))
        data = torch.empty(int(size), dtype=torch.uint8, device=self.device)
        if self.rank == source:
            data.copy_(torch.frombuffer(packed.getbuffer(), dtype=torch.uint8))
        self._finish(distributed.broadcast(data, source, async_op=True))
        if self.rank != source:
            self._load(io.BytesIO(data.cpu().numpy().tobytes()))

    def _save(self, packed: io.BytesIO) -> None:
        state = {
            "replica": self.replica.state(),
            "epochs": self.epochs.state(),
            # A new worker was started with other numbers.
            "policy": asdict(self.policy),
            "step": self.step,
        }
        torch.save(state, packed)

    def _load(self, packed: io.BytesIO) -> None:
        with _of_the_program():
            # Tensors only: unpickling data from a peer could run arbitrary code.
            state = torch.load(packed, weights_only=True, map_location=self.device)
            self.replica.load(state["replica"])
        self.epochs.load(state["epochs"])
        self.policy = Policy(**state["policy"])
        self.step = int(state["step"])

    def _gather(self, numbers: list[int]) -> list[list[int]]:
        # A sum, since gloo gathers no tensors of GPUs.
        rows = torch.zeros((self.size, len(numbers)), dtype=torch.int64, device=self.device)
        rows[self.rank] = torch.tensor(numbers)
        self._finish(distributed.all_reduce(rows, async_op=True))
        gathered: list[list[int]] = rows.tolist()
        return gathered

    def _finish(self, work: distributed.Work) -> None:
        """Wait for the collective call `work`. Raises PeerLost if a member is gone."""
        # On CPUs the membership is polled: gloo may not notice a closed connection while sending and would
        # wait until its time limit.
        while self._member is not None and self.device.type == "cpu" and not work.is_completed():
            try:
                work.wait(LOOK)
            except RuntimeError:
                if not work.is_completed() and self._member.is_broken():
                    give_up(work)
                    raise PeerLost("a member of this generation is gone") from None
        work.wait()


class _Membered:
    """The membership of a World: mailbox, store, and the change from one generation to the next."""

    def __init__(self, world: World, directory: Path) -> None:
        self._world = world
        self._mailbox = Mailbox(directory)
        host = os.environ.get(HOST, "127.0.0.1")
        if host == "127.0.0.1":
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        self._peers: dict[str, TCPStore] = {}
        member = int(os.environ.get("TRAINYARD_RANK", "0"))
        self._status = Status(member, f"{host}:{self._store.port}")
        self._mailbox.report(self._status)
        self._broken_at, self._reforms = (-1, 0), 0
        # How many generations it could not join since it last trained.
        self._failed_joins = 0
        threading.Thread(target=self._beat, name="elastic-beat", daemon=True).start()

    def newest(self, busy_seconds: float) -> int:
        """Return the number of the newest published generation. Also adds `busy_seconds`, the computing time of
        this step, to the mean that the worker reports."""
        self._status.busy_seconds += (busy_seconds - self._status.busy_seconds) / 10
        found = self._mailbox.membership()
        return self._world.generation if found is None else found.generation

    def is_broken(self) -> bool:
        """Return whether a newer generation began because this one lost a member."""
        found = self._mailbox.membership()
        return found is not None and found.loss > self._world.generation

    def switch(self, *, is_planned: bool, interrupted: int = 0) -> None:
        """Change to the newest generation, retrying with the next if that fails; blocks until this worker trains or
        has left. `is_planned`: not caused by a failure; `interrupted`: the number of steps that a failure
        interrupted; both are reported."""
        world, began = self._world, self._world._stepped_at
        is_newcomer, lost = self._status.generation == 0, None
        while lost is None:
            found = self._await_newer(world.generation)
            if found is None or found.rank_of(self._status.id) is None:
                self._leave()
                return
            try:
                lost = world._agree_on_state() if self._form(found) else None
            except (RuntimeError, OSError):
                is_planned = False
                self._failed_joins += 1
            if lost is None:
                dissolve()
                self._peers.clear()
                self._note_broken(found.generation)
        world._has_state = True
        pause = 0.0 if is_newcomer else time.monotonic() - began
        self._note_switch(pause, lost, interrupted, is_planned)

    def recover(self, error: BaseException) -> None:
        """Form a new group without the lost peer. Raises the error if the same members fail repeatedly at the
        same step."""
        progress = self._world.step, self._world.size
        self._reforms = self._reforms + 1 if progress == self._broken_at else 1
        self._broken_at = progress
        if self._reforms > MOST_REFORMS:
            raise error
        print(f"elastic: generation {self._world.generation} broke: {_first_line(error)}", flush=True)
        dissolve()
        self._note_broken(self._world.generation)
        self.switch(is_planned=False, interrupted=1)

    def note_epoch(self) -> None:
        """Report that an epoch is complete; the owner of the membership is not notified at once."""
        self._update(membership.TRAINING, is_urgent=False)

    def close(self) -> None:
        """Leave the group. Heartbeats continue until the process ends: the work after the training may take
        long, and a member without heartbeat is killed."""
        dissolve()
        if self._status.state != membership.LEFT:
            self._update(membership.LEFT)

    def _await_newer(self, than: int) -> Membership | None:
        """Wait for a generation newer than the number `than`; return None if the job is stopped first. A worker that
        was never a member waits for one that includes it."""
        began = time.monotonic()
        patience = STUCK_SECONDS * 2 ** min(MOST_STUCK_DOUBLINGS, max(0, self._failed_joins - 1))
        while True:
            found = self._mailbox.membership()
            if found is not None and found.generation > than:
                is_first_of_this = self._status.generation == 0 and found.rank_of(self._status.id) is None
                # A new worker waits until it becomes a member.
                if not is_first_of_this:
                    return found
            if self._world._stop:
                return None
            is_alone = self._status.state == membership.BROKEN and not self._status.is_stuck
            if is_alone and time.monotonic() - began > patience:
                # The others wait for this one in their group, and would until the limit of a call.
                self._status.is_stuck = True
                self._update(membership.BROKEN)
            time.sleep(POLL_SECONDS)

    def _form(self, found: Membership) -> bool:
        """Build the process group of the generation `found`. Return False if a newer one was published meanwhile.
        Raises RuntimeError or OSError if a member cannot be reached or the job is stopped."""
        dissolve()
        world, rank = self._world, found.rank_of(self._status.id)
        assert rank is not None
        world._enter(rank, len(found.members), found.generation)
        self._status.generation = found.generation
        store = PrefixStore(f"generation-{found.generation}", self._store_of(found.members[0]))
        store.add("arrived", 1)
        while store.add("arrived", 0) < len(found.members):
            newest = self._mailbox.membership()
            if newest is not None and newest.generation > found.generation:
                return False
            if world._stop:
                raise RuntimeError("told to stop while the world was forming")
            time.sleep(POLL_SECONDS)
        self._connect(store, rank, len(found.members))
        return True

    def _connect(self, store: PrefixStore, rank: int, size: int) -> None:
        form_group(store, rank, size, self._world.device, timedelta(seconds=FORM_SECONDS))
        group = distributed.distributed_c10d._get_default_group()
        group._get_backend(self._world.device)._set_default_timeout(timedelta(seconds=COLLECTIVE_SECONDS))

    def _store_of(self, member: Member) -> TCPStore:
        if member.id == self._status.id:
            return self._store
        if member.address not in self._peers:
            host, _, port = member.address.rpartition(":")
            # Connect first, which fails at once if nothing listens; the store's own constructor would retry
            # until its time limit.
            socket.create_connection((host, int(port)), FORM_SECONDS).close()
            limit = timedelta(seconds=FORM_SECONDS)
            self._peers[member.address] = TCPStore(host, int(port), is_master=False, timeout=limit)
        return self._peers[member.address]

    def _note_broken(self, generation: int) -> None:
        self._status.generation, self._status.is_stuck = generation, False
        self._update(membership.BROKEN)

    def _note_switch(self, pause: float, lost: int, interrupted: int, is_planned: bool) -> None:
        world = self._world
        cost = Switch(
            world.generation, world.step, world.size, time.time(), pause, lost, 0, interrupted, is_planned
        )
        self._status.switches.append(cost)
        self._status.is_stuck, self._failed_joins = False, 0
        self._update(membership.TRAINING)
        if world.is_first:
            print(
                f"elastic: generation {world.generation}, {world.size} worker{'s' * (world.size > 1)},"
                f" step {world.step},"
                f" pause {pause:.3f} s, {lost} steps lost",
                flush=True,
            )

    def _leave(self) -> None:
        self._world.has_left = True
        dissolve()
        self._update(membership.LEFT)

    def _update(self, state: str, *, is_urgent: bool = True) -> None:
        world, status = self._world, self._status
        status.state, status.step = state, world.step
        status.epochs_done, status.epochs_exact = world.epochs.done, world.epochs.exact
        self._mailbox.report(status, is_urgent=is_urgent)

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            self._mailbox.beat()


def _flattened(parameters: list[torch.nn.Parameter]) -> tuple[list[Tensor], Tensor]:
    """Return the parameters' gradients, zeros for one without, and one tensor with a copy of all of them."""
    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in parameters
    ]
    # One call for all gradients: each collective call costs a round trip.
    return gradients, torch.cat([gradient.reshape(-1) for gradient in gradients])


@contextmanager
def _of_the_program() -> Iterator[None]:
    """Context manager that turns errors of the program's own functions into ProgramError, so that they are not taken
    for a lost peer."""
    try:
        yield
    except (RuntimeError, OSError) as error:
        raise ProgramError(f"The state of the training cannot be shared: {error}") from error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
