"""Settings of Python's garbage collector for all processes of the control plane."""

import gc

THRESHOLDS = (10_000, 20, 50)


def collect_rarely() -> None:
    """Run Python's garbage collector less often than by default. A process allocates some hundred thousand objects at
    its start that stay; with the default thresholds, examining them takes an eighth of that time."""
    gc.set_threshold(*THRESHOLDS)
