"""End process groups of torch.distributed, also those with calls that do not end."""

from __future__ import annotations

import ctypes

from torch import distributed

# Abandoned calls with their process groups, kept alive because their destructor would wait for the call.
_given_up: list[tuple[distributed.Work, distributed.ProcessGroup]] = []


def dissolve() -> None:
    """Leave the default group, if there is one, and reset torch's group count, so that the next group gets the same
    name on all members."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    # torch numbers groups even if building one failed; without resetting the count, the next group would have
    # another name than on the peers, and all later ones would wait forever.
    distributed.distributed_c10d._world.group_count = 0


def give_up(work: distributed.Work) -> None:
    """Abandon `work`, a call of the default group that may never end. It is referenced for ever, since freeing it
    would wait for it."""
    _given_up[:] = [one for one in _given_up if not one[0].is_completed()]
    _given_up.append((work, distributed.distributed_c10d._get_default_group()))
    # So that the process can end without waiting for it.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_given_up))
