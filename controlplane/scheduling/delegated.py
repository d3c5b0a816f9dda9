"""Plan one cycle of a cluster whose own scheduler places the pods: `decide_offers(view, offers) -> Offers`.

All waiting jobs that may start are offered to that scheduler, in our order. A job that it has placed becomes a Start;
for the others its message becomes the reason of the Hold. Elastic jobs are offered with all of their pods. Rules that
it does not have (back-off, data, node pools, requests that can never fit) are applied before a job is offered. The
same input always gives the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controlplane.scheduling import reasons
from controlplane.scheduling.capacity import WHOLE_GPU, Amounts, NodeCapacity
from controlplane.scheduling.cycle_state import CycleState
from controlplane.scheduling.explain import Explainer, out_of_line
from controlplane.scheduling.feasibility import Refusal, line_up
from controlplane.scheduling.fit import place
from controlplane.scheduling.limits import not_ready, over_limit, over_quota, postponed
from controlplane.scheduling.order import Waiting, in_turn
from controlplane.scheduling.plan import Hold, Plan
from controlplane.scheduling.view import ClusterView, PodPlacement

Group = tuple[str, str]
"""A device that pods share, as the cluster's scheduler identifies it: (node, name of the group)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod of an offer that is bound to a node. `group`: the name of the group of pods with which it shares a GPU,
    "" for none."""

    rank: int
    node: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Offer:
    """A queued job whose pods exist in the cluster. `bound`: its pods that have a node. `code`: our reason code for
    why the cluster's scheduler does not place the others, "" if it has reported nothing; `words`, `details`: its
    message and numbers."""

    bound: tuple[Bound, ...] = ()
    code: str = ""
    words: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wish:
    """A job that may be offered now. `node_pools`: those that it may use, the preferred one first; () for all."""

    job: str
    node_pools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offers:
    """The plan to record. `wishes`: the jobs to offer to the cluster's scheduler, in queue order."""

    plan: Plan
    wishes: tuple[Wish, ...] = ()


def decide_offers(view: ClusterView, offers: Mapping[str, Offer], shared: Mapping[Group, int]) -> Offers:
    """Decide what to start, hold and offer now. `offers`: the present offers, by job id. `shared`: the device index
    of every group of running pods that share a GPU."""
    cycle = _Cycle(_as_gangs(view), offers, shared)
    for item in cycle.in_turn():
        cycle.consider(item)
    return cycle.answer()


def _as_gangs(view: ClusterView) -> ClusterView:
    """Return the view with every elastic job requesting all of its pods: pods are created with a fixed world size,
    before the cluster's scheduler reports how many it can place."""
    if all(job.min_pods is None for job in view.jobs):
        return view
    return replace(view, jobs=tuple(replace(job, min_pods=None) for job in view.jobs))


class _Cycle:
    def __init__(self, view: ClusterView, offers: Mapping[str, Offer], shared: Mapping[Group, int]) -> None:
        self._view = view
        self._offers = offers
        self._shared = dict(shared)
        self._state = CycleState(view)
        self._classes, self._impossible = line_up(view, self._state.accounts)
        ready = [one for one in self._classes if not_ready(one.jobs[0]) is None]
        self._shares = self._state.divide(ready)
        self._refusals: dict[str, Refusal] = {}
        self._words: dict[str, str] = {}
        self._held: list[Waiting] = []
        self._wishes: list[Wish] = []

    def in_turn(self) -> list[Waiting]:
        """Return all waiting jobs in queue order."""
        return [one.waiting(job) for one, job in in_turn(self._classes)]

    def consider(self, item: Waiting) -> None:
        """Decide on one job. It is offered if it is ready, and starts if the cluster's scheduler has placed all its
        pods; else it is held."""
        refusal = not_ready(item.job) or postponed(item.job, self._view)
        if refusal is None:
            self._wishes.append(Wish(item.job.id, item.request.pools))
            offer = self._offers.get(item.job.id, Offer())
            if len(offer.bound) != item.request.pods:
                refusal = self._said(item, offer)
            elif self._start(item, offer):
                return
            else:
                refusal = Refusal(reasons.WAITING_FOR_RECLAIM, {})
        self._held.append(item)
        if refusal is not None:
            self._refusals[item.job.id] = refusal

    def answer(self) -> Offers:
        """Return the decisions. Holds are explained last, by the capacity that the starts leave free."""
        explainer = Explainer(self._state, self._refusals)
        holds = [
            self._with_words(explainer.hold(item, position))
            for position, item in enumerate(self._held, start=1)
        ]
        holds += out_of_line(self._impossible)
        plan = Plan((), tuple(self._state.starts.values()), tuple(holds), self._shares)
        return Offers(plan, tuple(self._wishes))

    def _said(self, item: Waiting, offer: Offer) -> Refusal | None:
        """Return why the cluster's scheduler does not place the job: JUST_SUBMITTED while it has reported nothing.
        None if only capacity is missing, which our own numbers explain better."""
        if not offer.code:
            return Refusal(reasons.JUST_SUBMITTED, {})
        self._words[item.job.id] = offer.words
        is_no_room = offer.code == reasons.CLUSTER_FULL and "resource" not in offer.details
        if is_no_room and place(item.request, self._state.capacity.now) is None:
            return None
        ours = over_limit(item) or over_quota(item)
        numbers = ours.details if ours is not None and ours.code == offer.code else {}
        return Refusal(offer.code, {**offer.details, **numbers})

    def _with_words(self, hold: Hold) -> Hold:
        words = self._words.get(hold.job)
        return replace(hold, details={**hold.details, "cluster_says": words}) if words else hold

    def _start(self, item: Waiting, offer: Offer) -> bool:
        """Start the job on the nodes to which its pods are bound. Return False while devices there are not proven
        free."""
        chosen: list[PodPlacement] = []
        shared = dict(self._shared)
        for pod in sorted(offer.bound, key=lambda pod: pod.rank):
            placement = self._choose(item, pod, shared)
            if placement is None:
                break
            self._state.capacity.now.take(placement, Amounts())
            chosen.append(placement)
        for placement in chosen:
            self._state.capacity.now.give(placement, Amounts())
        if len(chosen) < len(offer.bound):
            return False
        self._shared = shared
        self._state.start(item, tuple(chosen))
        return True

    def _choose(self, item: Waiting, pod: Bound, shared: dict[Group, int]) -> PodPlacement | None:
        """Return the placement of one pod on its node: whole devices with the lowest indexes, or a share on the
        device of its group. None if the node is not in the view or has too few free. The device of a new group is
        added to `shared`."""
        if pod.node not in self._state.capacity.now.positions:
            return None
        room, request = self._state.capacity.now.node(pod.node), item.request
        if not request.is_share:
            free = [index for index, milli in zip(room.indexes, room.free, strict=True) if milli == WHOLE_GPU]
            count = request.whole_devices
            devices = tuple((index, WHOLE_GPU) for index in free[:count])
            return PodPlacement(pod.rank, pod.node, devices) if len(devices) == count else None
        found = _shared_device(room, item, pod.group, shared.get((pod.node, pod.group)))
        if found is None:
            return None
        if pod.group:
            shared[pod.node, pod.group] = found[0]
        return PodPlacement(pod.rank, pod.node, (found,))


def _shared_device(
    room: NodeCapacity, item: Waiting, group: str, index: int | None
) -> tuple[int, int] | None:
    """Return (device, milli-GPUs) for a share: the device `index` of its group, a free device for a new group
    (`index` None), or the fullest that fits where the cluster names no groups (`group` ""). None if none fits."""
    fits = []
    for number, free, mode in zip(room.indexes, room.free, room.modes, strict=True):
        wanted = item.request.share_of(mode)
        if wanted <= free and index in (None, number):
            fits.append((bool(group) and free != WHOLE_GPU, free, number, wanted))
    if not fits:
        return None
    _, _, number, wanted = min(fits)
    return number, wanted
