"""The garbage collector in the loop's process."""

import gc

from controlplane.loop.garbage import long_lived


def test_what_is_made_meanwhile_is_not_examined_again():
    before = gc.get_freeze_count()
    try:
        with long_lived():
            assert not gc.isenabled()
            kept = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
