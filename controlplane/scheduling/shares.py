"""Fair share: the quotas first, then the rest (surplus) by priority and weight, in whole GPUs to each sibling whose
demand is not met in full.

GPUs are integers (milli-GPUs), and past use is rounded to millionths, so that equal input gives equal shares on every
machine. `None` means unlimited.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

WHOLE_GPU = 1000
_PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Claim:
    """The rights and the demand of one project or department among its siblings, in milli-GPUs. `usage`: the fraction
    of the cluster that it used recently, 0 to 1. `rank`: lower is older; breaks ties."""

    name: str
    quota: int | None
    weight: int
    requested: int
    priority: int = 0
    limit: int | None = None
    usage: float = 0.0
    rank: int = 0

    wanted: int = field(init=False)
    """The most that it can use: its request, at most its limit."""

    def __post_init__(self) -> None:
        wanted = self.requested if self.limit is None else min(self.limit, self.requested)
        object.__setattr__(self, "wanted", wanted)


def divide(total: int, claims: Iterable[Claim], usage_weight_milli: int = 1000) -> dict[str, int]:
    """Return the fair share of each sibling in milli-GPUs, by name. Their sum exceeds `total` (milli-GPUs) only if
    the quotas do. `usage_weight_milli`: how strongly past usage lowers a share of the surplus, in thousandths; 0: not
    at all."""
    siblings = list(claims)
    shares = {claim.name: _guaranteed(claim, total) for claim in siblings}
    remaining = total - sum(shares.values())
    # If the quotas exceed the total there is no surplus, and every project keeps its quota.
    if remaining <= 0:
        return shares
    bands = _bands(siblings)
    remainders: dict[str, int] = {}
    for band in bands:
        remaining = _share_out(band, shares, remainders, remaining, usage_weight_milli)
    _hand_out_odd_units(bands, shares, remainders, remaining)
    return shares


def _guaranteed(claim: Claim, total: int) -> int:
    return min(total if claim.quota is None else claim.quota, claim.wanted)


def _bands(siblings: Sequence[Claim]) -> list[list[Claim]]:
    """Return the siblings grouped by priority, the highest first. The demand of one group is met in full before the
    next gets surplus."""
    priorities = sorted({claim.priority for claim in siblings}, reverse=True)
    return [[claim for claim in siblings if claim.priority == priority] for priority in priorities]


def _share_out(
    band: Sequence[Claim],
    shares: dict[str, int],
    remainders: dict[str, int],
    remaining: int,
    k_milli: int,
) -> int:
    """Distribute surplus within the group in rounds, and return what is left. Modifies `shares`, and `remainders`:
    the fractions of the last round, as numerators over one common denominator. `k_milli`: the k of
    `_effective_weights`, in thousandths."""
    is_another_round = True
    while is_another_round and remaining > 0:
        is_another_round = False
        pot = remaining
        for claim, part, whole in _effective_weights(band, shares, k_milli):
            need, fair = claim.wanted - shares[claim.name], pot * part // whole
            # Exact fractions, because the remainders decide which sibling gets an odd GPU.
            if need * whole <= pot * part:
                given = need
                remainders.pop(claim.name, None)
                is_another_round = is_another_round or need * whole < pot * part
            else:
                given = fair - fair % WHOLE_GPU
                remainders[claim.name] = pot * part - given * whole
            shares[claim.name] += given
            remaining -= given
    return remaining


def _effective_weights(
    band: Sequence[Claim], shares: dict[str, int], k_milli: int
) -> list[tuple[Claim, int, int]]:
    """Return (claim, its part, sum of all parts) for the claims that want more and have a weight; [] if all parts are
    0. Past usage lowers a part.

    With w the claim's share of the weights, the part is max(0, w + k (w - usage)), scaled to integers.
    """
    unsatisfied = [claim for claim in band if claim.wanted > shares[claim.name]]
    weights = sum([claim.weight for claim in unsatisfied])
    if weights == 0:
        return []
    most = (1000 + k_milli) * _PPM
    parts = [
        # Integers throughout, because floating point could differ between machines.
        max(0, claim.weight * most - k_milli * round(claim.usage * _PPM) * weights)
        if claim.usage
        else claim.weight * most
        for claim in unsatisfied
    ]
    whole = sum(parts)
    pairs = zip(unsatisfied, parts, strict=True)
    return [(claim, part, whole) for claim, part in pairs if claim.weight > 0] if whole else []


def _hand_out_odd_units(
    bands: Sequence[Sequence[Claim]], shares: dict[str, int], remainders: dict[str, int], remaining: int
) -> None:
    """Give what rounding has left, at most one GPU each, to the siblings in the order of the groups `bands`, in a group
    by the largest remainders and then the oldest, until `remaining` is used up."""
    for band in bands:
        waiting = [claim for claim in band if claim.name in remainders]
        for claim in sorted(waiting, key=lambda claim: (-remainders[claim.name], claim.rank, claim.name)):
            given = min(WHOLE_GPU, remaining, claim.wanted - shares[claim.name])
            shares[claim.name] += given
            remaining -= given
