"""A cluster that falls silent while it is watched, with every connection open: nobody waits for it."""

import time

import pytest

from controlplane.engines.base import EngineUnreachable
from controlplane.engines.kubernetes import cluster_cache
from tests.kubernetes.engine_case import Case
from tests.kubernetes.proxy import fault_proxy
from tests.waiting import wait_until

WAIT_SECONDS = 4.0


def test_a_cluster_that_falls_silent_is_not_waited_for(case: Case, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster_cache, "STALE_SECONDS", 0.3)
    # Long, so that a call that waits differs from one that is slow.
    monkeypatch.setattr(cluster_cache, "ANSWER_SECONDS", WAIT_SECONDS)
    with fault_proxy(case.kube) as proxy:
        engine = case.again(access=proxy.access())
        assert engine.nodes()
        proxy.freeze()
        took: list[float] = []

        def is_unreachable() -> bool:
            began = time.monotonic()
            try:
                engine.pods()
            except EngineUnreachable:
                return True
            finally:
                took.append(time.monotonic() - began)
            return False

        wait_until(is_unreachable, 20, "the silence to be noticed")
        for _ in range(5):
            assert is_unreachable()
        assert sum(seconds >= WAIT_SECONDS for seconds in took) == 1
        proxy.thaw()
        wait_until(lambda: not is_unreachable(), 30, "the cluster to be heard of again")
