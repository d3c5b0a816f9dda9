"""Decide who trains in the next generation of an elastic job, and the outcome of its scale operation. Pure:
the loop reads the rows and the workers' files into a `Standing`, and executes the `Answer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from controlplane.scheduling.sizes import largest_size

# Why a generation began.
START, LOSS, REFORM, GROW, SHRINK, ROLL_BACK = "start", "loss", "reform", "grow", "shrink", "roll_back"
# States of a scale operation.
PENDING, RUNNING, SUCCEEDED, ROLLED_BACK, FAILED = "pending", "running", "succeeded", "rolled_back", "failed"
OPEN_STATES = (PENDING, RUNNING)
# What a worker says of itself (workloads/common/membership.py).
READY, TRAINING, BROKEN, LEFT = "ready", "training", "broken", "left"

NO_ROOM = "In time, there was no room for more workers. The training went on as it was."
# Without a beat; a worker beats twice a second.
FROZEN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One pod of the attempt. `state` is the one that it reports, "" before its first report; `generation`
    the last that it entered. `exit_code` None while it runs. `silent_seconds`: since its last heartbeat."""

    rank: int
    is_alive: bool
    state: str = ""
    generation: int = 0
    exit_code: int | None = None
    silent_seconds: float = 0.0

    @property
    def has_finished(self) -> bool:
        return not self.is_alive and self.exit_code == 0

    @property
    def can_join(self) -> bool:
        """Return whether it is ready and waiting, or training already."""
        return self.is_alive and self.state in (READY, TRAINING, BROKEN)


@dataclass(frozen=True, slots=True)
class Operation:
    """An open scale operation: `joining` and `leaving` are ranks, `generation` 0 until it has published one."""

    joining: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()
    generation: int = 0
    is_overdue: bool = False
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """An attempt as it is: the newest generation (0: none) and its members, and all its workers by rank. `sizes`: the
    allowed numbers of members, () for all from `fewest`."""

    generation: int
    members: tuple[int, ...]
    workers: Mapping[int, Worker]
    fewest: int
    operation: Operation | None = None
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What to do: `members` of a new generation and its `cause`, the operation's next state and why, pods to `stop`
    with the usual grace and pods to `kill` at once."""

    members: tuple[int, ...] | None = None
    cause: str = ""
    outcome: str = ""
    message: str = ""
    stop: tuple[int, ...] = ()
    kill: tuple[int, ...] = ()


def answer(standing: Standing) -> Answer:
    """Return what follows; an empty answer while there is nothing to do."""
    if not standing.generation:
        return _first(standing)
    frozen = tuple(
        rank
        for rank in standing.members
        if (worker := standing.workers.get(rank))
        and worker.is_alive
        and worker.silent_seconds > FROZEN_SECONDS
    )
    # Before anything else: a frozen member keeps all others from the next step.
    if frozen:
        return Answer(kill=frozen)
    if _is_ending(standing):
        return _ended(standing)
    alive = _alive(standing, standing.members)
    if len(alive) < len(standing.members):
        # Beyond the largest allowed size survivors leave: the last ones, so that the first member stays.
        stay = alive[: largest_size(standing.sizes, len(alive))]
        return Answer(stay, LOSS) if len(stay) >= standing.fewest else Answer()
    # a member that has died is not broken, and its end may be seen a moment after its peers noticed it
    if all(_is_broken(standing.workers[rank], standing.generation) for rank in alive):
        return Answer(standing.members, REFORM)
    if standing.operation is None:
        # those sent away, whose stop may have failed
        return Answer(stop=_alive(standing, sorted(set(standing.workers) - set(standing.members))))
    return _advance(standing, standing.operation)


def deciding(ranks: Sequence[Worker], members: Collection[int], fewest: int) -> frozenset[int]:
    """Return the ranks whose ends decide the attempt. Without a generation all do. Then only members do, and those that
    failed count only when too few others are left."""
    if not members:
        return frozenset(worker.rank for worker in ranks)
    counted = [worker for worker in ranks if worker.rank in members]
    unharmed = [worker for worker in counted if worker.is_alive or worker.has_finished]
    return frozenset(worker.rank for worker in (unharmed if len(unharmed) >= fewest else counted))


def _first(standing: Standing) -> Answer:
    """Begin the first generation once the whole gang is ready. A program that never reports is left alone."""
    gang = tuple(sorted(standing.workers))
    if gang and all(standing.workers[rank].can_join for rank in gang):
        return Answer(gang, START)
    return Answer()


def _is_ending(standing: Standing) -> bool:
    """Return whether members end because the training is over: a leaving worker is no longer a member."""
    return any(standing.workers[rank].has_finished for rank in standing.members if rank in standing.workers)


def _ended(standing: Standing) -> Answer:
    """Answer for a training that ended: if all living members lost a peer in the last step, form a generation
    of them to complete it; else fail an open operation and stop the workers that waited to join."""
    alive = _alive(standing, standing.members)
    if alive and all(_is_broken(standing.workers[rank], standing.generation) for rank in alive):
        return Answer(alive, LOSS)
    if standing.operation is None:
        return Answer()
    waiting = _alive(standing, standing.operation.joining)
    return Answer(outcome=FAILED, message="The training ended first.", stop=waiting)


def _advance(standing: Standing, operation: Operation) -> Answer:
    if operation.generation:
        return _complete(standing, operation)
    if operation.leaving:
        return _release(standing, operation)
    if operation.joining:
        return _admit(standing, operation)
    return Answer(outcome=ROLLED_BACK, message=NO_ROOM) if operation.is_overdue else Answer()


def _release(standing: Standing, operation: Operation) -> Answer:
    stay = tuple(rank for rank in standing.members if rank not in operation.leaving)
    stay = stay[: largest_size(standing.sizes, len(stay))]
    if len(stay) < standing.fewest:
        why = f"{len(stay)} workers would be left, and the job needs {standing.fewest}."
        return Answer(outcome=FAILED, message=why)
    return Answer(stay, SHRINK, RUNNING)


def _admit(standing: Standing, operation: Operation) -> Answer:
    """Admit new workers once all are ready; a lost or late one cancels all of them, without an effect on the
    training."""
    newcomers = [standing.workers[rank] for rank in operation.joining if rank in standing.workers]
    dead = [worker for worker in newcomers if not worker.is_alive]
    waiting = _alive(standing, operation.joining)
    if dead:
        first = dead[0]
        why = f"Worker {first.rank} ended before it could join (exit code {first.exit_code})."
        return Answer(outcome=ROLLED_BACK, message=why, stop=waiting)
    late = [worker.rank for worker in newcomers if not worker.can_join]
    size = len(standing.members) + len(operation.joining)
    if largest_size(standing.sizes, size) != size:
        why = f"A worker was lost meanwhile, and {size} workers are not an allowed size."
        return Answer(outcome=ROLLED_BACK, message=why, stop=waiting)
    if newcomers and not late:
        return Answer((*standing.members, *operation.joining), GROW, RUNNING)
    if operation.is_overdue:
        names = ", ".join(str(rank) for rank in late) or "all"
        why = f"In time, these workers were not ready to join: {names}."
        return Answer(outcome=ROLLED_BACK, message=why, stop=waiting)
    return Answer()


def _complete(standing: Standing, operation: Operation) -> Answer:
    """After its generation was published an operation is over when all members train in it, or in a later one, and
    those that leave have ended."""
    members = [standing.workers[rank] for rank in standing.members]
    has_switched = all(one.state == TRAINING and one.generation >= operation.generation for one in members)
    leaving = _alive(standing, operation.leaving)
    if has_switched and all(standing.workers[rank].state == LEFT for rank in leaving):
        # their devices are free, and are to be given away, only once they have ended
        return Answer(stop=leaving) if leaving else Answer(outcome=SUCCEEDED)
    if not operation.is_overdue:
        return Answer()
    return _undo(standing, operation, leaving)


def _undo(standing: Standing, operation: Operation, leaving: tuple[int, ...]) -> Answer:
    if operation.is_forced:
        why = "Not all workers acknowledged in time; those that leave were stopped."
        return Answer(stop=leaving) if leaving else Answer(outcome=SUCCEEDED, message=why)
    stayed = tuple(rank for rank in standing.members if rank not in operation.joining)
    unswitched = [
        rank for rank in standing.members if standing.workers[rank].generation < operation.generation
    ]
    why = f"In time, these workers did not acknowledge: {', '.join(map(str, unswitched)) or 'the leavers'}."
    # Those that have left are ending and cannot come back.
    back = tuple(rank for rank in leaving if standing.workers[rank].state != LEFT)
    return Answer((*stayed, *back), ROLL_BACK, ROLLED_BACK, why, stop=_alive(standing, operation.joining))


def _alive(standing: Standing, ranks: Sequence[int]) -> tuple[int, ...]:
    return tuple(rank for rank in ranks if rank in standing.workers and standing.workers[rank].is_alive)


def _is_broken(worker: Worker, generation: int) -> bool:
    return worker.state == BROKEN and worker.generation == generation


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could leave. `is_spot`: its node may be taken away at any time. `busy_seconds`: its own time per
    step. `node_peers`: pods of this job on its node."""

    rank: int
    node: str
    is_spot: bool = False
    busy_seconds: float = 0.0
    node_peers: int = 1


STRAGGLER_FACTOR = 1.5


def choose_leavers(candidates: Sequence[Candidate], count: int) -> tuple[tuple[int, str], ...]:
    """Return (rank, why) of so many that leave with the least harm: those on spot nodes, then stragglers, then those on
    nodes that hold the fewest of this job's pods, then the newest. The first member goes last."""
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
    """What an operation would do. `leaving`: (rank, why) of each worker that goes."""

    from_workers: int
    to_workers: int
    leaving: tuple[tuple[int, str], ...] = ()

    @property
    def message(self) -> str:
        """Return which workers leave, and why, in words."""
        return "; ".join(f"worker {rank} leaves: {why}" for rank, why in self.leaving)
