"""Settings of Python's garbage collector for all processes of the control plane."""

import gc

THRESHOLDS = (10_000, 20, 50)


def collect_rarely() -> None:
    """Run the garbage collector less often than by default.

    A start allocates some hundred thousand objects that stay; by default, collections that examine them take
    an eighth of its time.
    """
    gc.set_threshold(*THRESHOLDS)
