"""Which gang gets the cycle's reservation: the oldest one without room whose start time can be computed."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.fit import is_free
from controlplane.scheduling.limits import exceeds_limits, is_backing_off, not_ready, postponed
from controlplane.scheduling.moves import Moves
from controlplane.scheduling.order import JobClass, Waiting
from controlplane.scheduling.reservation import reserve
from controlplane.scheduling.view import ClusterView


def reserve_for_oldest(
    state: CycleState, moves: Moves, classes: Iterable[JobClass], lapsed: Sequence[Waiting]
) -> None:
    """Set `state.reservation`; None without a gang that can have one, or if no expected end is known. `lapsed`: jobs
    whose promise of an earlier cycle has lapsed because of their project's share.

    A gang that waits only for stopping jobs gets one too: otherwise jobs that the last cycle's reservation bound would
    take the capacity.
    """
    if not state.ends:
        return
    gangs = [one.head for one in classes if not one.is_decided and _may_reserve(one.head, state.view)]
    # Oldest first instead of in turn: see docs/decisions/0042.
    gangs.sort(key=lambda item: (item.job.submit_rank, item.job.id))
    if lapsed and state.is_releasing:
        # A gang with idle room had it when the promises were made, so the reservation of one that has a promise bound
        # it.
        gangs = list(_without_room(gangs, state, moves))
    with _counted(lapsed, state, moves):
        without_room = _without_room(gangs, state, moves)
        state.reservation = reserve(without_room, state.expected_ends, state.capacity.soon, state.view.now)


@contextmanager
def _counted(lapsed: Sequence[Waiting], state: CycleState, moves: Moves) -> Iterator[None]:
    """Context manager: the devices of lapsed promises count as promised again. On exit they are free for every job
    whose turn comes; promises that were withdrawn meanwhile are restored first."""
    if not lapsed:
        yield
        return
    with state.trial():
        for item in lapsed:
            if is_free(item.job.promised, item.job, state.capacity.soon):
                state.promise(item, item.job.promised)
        yield
    moves.forget_rooms()


def _may_reserve(item: Waiting, view: ClusterView) -> bool:
    """Return whether the job is a gang that may get the reservation: a queued job, not missing workers, that is ready
    or only backs off. So a failed start does not cost a gang its reservation."""
    job = item.job
    is_prevented = postponed(job, view) is not None and not is_backing_off(job, view.now)
    return item.is_gang and not job.workers_for and not_ready(job) is None and not is_prevented


def _without_room(gangs: Iterable[Waiting], state: CycleState, moves: Moves) -> Iterator[Waiting]:
    """Yield the gangs that limits permit and that cannot start now. The promise of each examined gang is withdrawn,
    so that it is judged by other free capacity. Only those whose promise has lapsed have one, since all gangs here are
    undecided: `_counted` restores it."""
    for item in gangs:
        if item.job.id in state.promises:
            state.withdraw(item)
        if not exceeds_limits(item) and (
            is_backing_off(item.job, state.view.now) or moves.find(item, is_soon=False) is None
        ):
            yield item
