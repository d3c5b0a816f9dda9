"""How often Python looks for garbage in the processes of the control plane."""

import gc

THRESHOLDS = (10_000, 20, 50)


def collect_rarely() -> None:
    """Look for cyclic garbage less often than by default.

    A start allocates some hundred thousand objects that stay, and by default spends an eighth of its time looking at
    them.
    """
    gc.set_threshold(*THRESHOLDS)
