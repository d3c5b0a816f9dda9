"""Decide the members of an elastic job's next generation and the outcome of its scale operation. Pure: the
loop reads rows and the workers' files into a `MembershipState`, and executes the `Answer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.scheduling.sizes import largest_size

# Causes of a new generation.
START, LOSS, REFORM, GROW, SHRINK, ROLL_BACK = "start", "loss", "reform", "grow", "shrink", "roll_back"
# States of a scale operation.
PENDING, RUNNING, SUCCEEDED, ROLLED_BACK, FAILED = "pending", "running", "succeeded", "rolled_back", "failed"
OPEN_STATES, UNSUCCESSFUL = (PENDING, RUNNING), (ROLLED_BACK, FAILED)
# States that a worker reports in its file (workloads/common/membership.py).
READY, TRAINING, BROKEN, LEFT = "ready", "training", "broken", "left"

NO_ROOM = "There was no room for more workers in time. The training continues unchanged."
# A worker without a heartbeat for this long is killed; workers send two per second.
FROZEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One pod of the attempt. `state`: the state that the worker reported last, "" before its first report.
    `generation`: the last one that it joined. `exit_code`: None while it runs. `silent_seconds`: the time since its
    last heartbeat. `is_stuck`: it is BROKEN and asks for another generation."""

    rank: int
    is_alive: bool
    state: str = ""
    generation: int = 0
    exit_code: int | None = None
    silent_seconds: float = 0.0
    is_stuck: bool = False

    @property
    def has_finished(self) -> bool:
        return not self.is_alive and self.exit_code == 0

    @property
    def can_join(self) -> bool:
        """Return whether the worker can be a member of the next generation: it waits to join or trains
        already."""
        return self.is_alive and self.state in (READY, TRAINING, BROKEN)


@dataclass(frozen=True, slots=True)
class Operation:
    """An open scale operation. `joining` and `leaving`: ranks. `generation`: the number of the generation that
    carries it out, 0 before it is published. `is_overdue`: its time limit has passed; `is_forced`: leaving workers
    are then stopped instead of rolling back."""

    joining: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    generation: int = 0
    is_overdue: bool = False
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class MembershipState:
    """State of an attempt: the newest generation (0: none yet), its members, and all workers by rank. `operation`: the
    open scale operation, None without one. `sizes`: the allowed numbers of members, () for any number from `fewest`."""

    generation: int
    members: tuple[int, ...]
    workers: Mapping[int, Worker]
    fewest: int
    operation: Operation | None = None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Actions for the loop: `members` and `cause` of a new generation, None for no change; the operation's
    `outcome` and `message`; pods to `stop` with the usual grace and pods to `kill` at once."""

    members: tuple[int, ...] | None = None
    cause: str = ""
    outcome: str = ""
    message: str = ""
    stop: tuple[int, ...] = ()
    kill: tuple[int, ...] = ()


def answer(current: MembershipState) -> Answer:
    """Return what to do with the attempt's workers and membership now; an Answer of defaults if nothing."""
    if not current.generation:
        return _first(current)
    frozen = tuple(
        rank
        for rank in (*current.members, *_switching_leavers(current))
        if (worker := current.workers.get(rank))
        and worker.is_alive
        and worker.silent_seconds > FROZEN_SECONDS
    )
    # First of all: one frozen member blocks the others, who wait for it in every step.
    if frozen:
        return Answer(kill=frozen)
    if _is_ending(current):
        return _ended(current)
    alive = _alive(current, current.members)
    if len(alive) < len(current.members):
        # If the survivors are not an allowed size, the last ones leave, so that the first member stays.
        stay = alive[: largest_size(current.sizes, len(alive))]
        return Answer(stay, LOSS) if len(stay) >= current.fewest else Answer()
    # Only living members count: the loop may see a member's death later than its peers do.
    broken = [one for rank in alive if _is_broken(one := current.workers[rank], current.generation)]
    # One that is stuck could not join, or gave up alone: the others may wait for it in a call without an end.
    if len(broken) == len(alive) or any(one.is_stuck for one in broken):
        return Answer(current.members, REFORM)
    if any(_is_lost(current.workers[rank]) for rank in _switching_leavers(current)):
        # gloo can miss a closed connection: the other members may wait for the lost one in a call without an
        # end. A new generation interrupts that call, since workers watch the membership.
        return Answer(current.members, REFORM)
    if current.operation is None:
        # Workers that were removed but still run, because their stop failed.
        return Answer(stop=_alive(current, sorted(set(current.workers) - set(current.members))))
    return _advance(current, current.operation)


def deciding(ranks: Sequence[Worker], members: Collection[int], fewest: int) -> frozenset[int]:
    """Return the ranks whose ends decide the attempt: those of all workers in `ranks` while there are no `members`
    (ranks of the newest generation), then the members. Failed members do not count while at least `fewest` others are
    alive or finished."""
    if not members:
        return frozenset(worker.rank for worker in ranks)
    counted = [worker for worker in ranks if worker.rank in members]
    unharmed = [worker for worker in counted if worker.is_alive or worker.has_finished]
    return frozenset(worker.rank for worker in (unharmed if len(unharmed) >= fewest else counted))


def _first(current: MembershipState) -> Answer:
    """Return the answer that begins the first generation once all pods of the gang can join. Before that, and for a
    program that never reports, the answer is empty."""
    gang = tuple(sorted(current.workers))
    if gang and all(current.workers[rank].can_join for rank in gang):
        return Answer(gang, START)
    return Answer()


def _is_ending(current: MembershipState) -> bool:
    """Return whether a member has finished, which means that the training is over; leaving workers are no
    longer members."""
    return any(current.workers[rank].has_finished for rank in current.members if rank in current.workers)


def _ended(current: MembershipState) -> Answer:
    """Return the actions for a training in which a member has finished. If all living members are BROKEN, as
    after the loss of a peer in the last step, they form a generation to complete it; else an open operation fails
    and its joining workers stop."""
    alive = _alive(current, current.members)
    # Whichever generation they lost: in a newer one they would wait for the members that have finished.
    if alive and all(current.workers[rank].state == BROKEN for rank in alive):
        return Answer(alive, LOSS)
    if current.operation is None:
        return Answer()
    waiting = _alive(current, current.operation.joining)
    return Answer(outcome=FAILED, message="The training ended first.", stop=waiting)


def _advance(current: MembershipState, operation: Operation) -> Answer:
    if operation.generation:
        return _complete(current, operation)
    if operation.leaving:
        return _release(current, operation)
    if operation.joining:
        return _admit(current, operation)
    return Answer(outcome=ROLLED_BACK, message=NO_ROOM) if operation.is_overdue else Answer()


def _release(current: MembershipState, operation: Operation) -> Answer:
    stay = tuple(rank for rank in current.members if rank not in operation.leaving)
    stay = stay[: largest_size(current.sizes, len(stay))]
    if len(stay) < current.fewest:
        why = f"{len(stay)} workers would be left, and the job needs {current.fewest}."
        return Answer(outcome=FAILED, message=why)
    return Answer(stay, SHRINK, RUNNING)


def _admit(current: MembershipState, operation: Operation) -> Answer:
    """Return the answer that publishes a generation with the joining workers once all of them are ready. If one is
    lost or late, it cancels the operation; the training is not affected."""
    newcomers = [current.workers[rank] for rank in operation.joining if rank in current.workers]
    dead = [worker for worker in newcomers if not worker.is_alive]
    waiting = _alive(current, operation.joining)
    if dead:
        first = dead[0]
        why = f"Worker {first.rank} ended before it could join (exit code {first.exit_code})."
        return Answer(outcome=ROLLED_BACK, message=why, stop=waiting)
    late = [worker.rank for worker in newcomers if not worker.can_join]
    size = len(current.members) + len(operation.joining)
    if largest_size(current.sizes, size) != size:
        why = f"A worker was lost meanwhile, and {size} workers are not an allowed size."
        return Answer(outcome=ROLLED_BACK, message=why, stop=waiting)
    if newcomers and not late:
        return Answer((*current.members, *operation.joining), GROW, RUNNING)
    if operation.is_overdue:
        names = ", ".join(str(rank) for rank in late) or "all"
        why = f"These workers were not ready to join in time: {names}."
        return Answer(outcome=ROLLED_BACK, message=why, stop=waiting)
    return Answer()


def _complete(current: MembershipState, operation: Operation) -> Answer:
    """Return the answer that ends the operation once its generation, or a later one, trains with all members and the
    leaving workers have ended. If the operation is overdue, it is rolled back or, if forced, its leaving workers are
    stopped."""
    members = [current.workers[rank] for rank in current.members]
    has_switched = all(one.state == TRAINING and one.generation >= operation.generation for one in members)
    leaving = _alive(current, operation.leaving)
    if has_switched and all(current.workers[rank].state == LEFT for rank in leaving):
        # The operation ends only after the leaving pods have: until then their devices cannot be given to
        # other jobs.
        return Answer(stop=leaving) if leaving else Answer(outcome=SUCCEEDED)
    if not operation.is_overdue:
        return Answer()
    return _undo(current, operation, leaving)


def _undo(current: MembershipState, operation: Operation, leaving: tuple[int, ...]) -> Answer:
    if operation.is_forced:
        why = "Not all workers acknowledged in time; the leaving ones were stopped."
        return Answer(stop=leaving) if leaving else Answer(outcome=SUCCEEDED, message=why)
    stayed = tuple(rank for rank in current.members if rank not in operation.joining)
    unswitched = [rank for rank in current.members if current.workers[rank].generation < operation.generation]
    why = f"These workers did not acknowledge in time: {', '.join(map(str, unswitched)) or 'the leaving workers'}."
    # Workers that have left are about to exit and cannot rejoin.
    back = tuple(rank for rank in leaving if current.workers[rank].state != LEFT)
    return Answer((*stayed, *back), ROLL_BACK, ROLLED_BACK, why, stop=_alive(current, operation.joining))


def _alive(current: MembershipState, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if rank in current.workers and current.workers[rank].is_alive)


def _switching_leavers(current: MembershipState) -> tuple[int, ...]:
    """Return the ranks that leave with the newest generation, until all members have joined it."""
    operation = current.operation
    if operation is None or operation.generation != current.generation:
        return ()
    workers = current.workers
    members = [workers[rank] for rank in current.members if rank in workers]
    # Until then they are needed: the last step before the switch includes the leaving workers.
    if all(worker.generation >= current.generation for worker in members):
        return ()
    # One that has left is beyond that step, so it is not needed for it.
    return tuple(rank for rank in operation.leaving if rank in workers and workers[rank].state != LEFT)


def _is_lost(worker: Worker) -> bool:
    return not worker.is_alive and not worker.has_finished


def _is_broken(worker: Worker, generation: int) -> bool:
    return worker.state == BROKEN and worker.generation == generation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could be removed. `is_spot`: its node may be withdrawn by the provider. `busy_seconds`:
    its own computing time per step. `node_peers`: the number of this job's pods on its node."""

    rank: int
    node: str
    is_spot: bool = False
    busy_seconds: float = 0.0
    node_peers: int = 1


STRAGGLER_FACTOR = 1.5


def choose_leavers(candidates: Sequence[Candidate], count: int) -> tuple[tuple[int, str], ...]:
    """Return (rank, reason) of the `count` workers to remove, in this order of preference: workers on spot nodes,
    slow workers, workers on nodes with the fewest pods of this job, the newest workers. The lowest rank goes
    last."""
    ordered = sorted(candidate.busy_seconds for candidate in candidates)
    typical = ordered[len(ordered) // 2] if ordered else 0.0
    first = min((candidate.rank for candidate in candidates), default=0)

    def why(one: Candidate) -> str:
        if one.is_spot:
            return f"{one.node} is a spot node"
        if typical and one.busy_seconds > STRAGGLER_FACTOR * typical:
            return f"straggler: {one.busy_seconds * 1000:.0f} ms per step, {typical * 1000:.0f} ms is typical"
        return f"{one.node} holds {one.node_peers} of the job's workers"

    def order(one: Candidate) -> tuple[bool, bool, bool, int, int]:
        is_slow = bool(typical) and one.busy_seconds > STRAGGLER_FACTOR * typical
        return (one.rank == first, not one.is_spot, not is_slow, one.node_peers, -one.rank)

    return tuple((one.rank, why(one)) for one in sorted(candidates, key=order)[:count])


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The preview of a scale operation. `leaving`: (rank, reason) of each worker to remove."""

    from_workers: int
    to_workers: int
    leaving: tuple[tuple[int, str], ...] = ()

    @property
    def message(self) -> str:
        """Return a sentence with the workers that leave and the reasons."""
        return "; ".join(f"worker {rank} leaves: {why}" for rank, why in self.leaving)
