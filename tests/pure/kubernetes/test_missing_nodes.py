"""A node that is deleted and registered again takes its pods back; one that stays away is gone."""

from controlplane.engines import base
from controlplane.engines.kubernetes import reports
from controlplane.engines.kubernetes.cluster_cache import Absences
from tests.pure.kubernetes.test_reports import LATER, NODES, recorded

AWAY = reports.NODE_GONE_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def running(absences: Absences, nodes) -> base.PodReport:
    """The report of a pod that runs, bound to its node for an hour."""
    return reports.pod_report(recorded("running"), absences.node("node-a", nodes), LATER)


def test_a_node_that_comes_back_takes_its_pods_back():
    clock = Clock()
    absences = Absences(clock)
    assert running(absences, NODES).reason == ""
    for seconds in (0, AWAY / 2, AWAY / 2):
        clock.now += seconds
        report = running(absences, {})
        assert (report.state, report.reason, report.is_proven_gone) == (base.RUNNING, base.NODE_LOST, False)
    assert running(absences, NODES).reason == ""
    clock.now += 1
    assert not running(absences, {}).is_proven_gone  # it is counted anew


def test_a_node_that_stays_away_is_gone():
    clock = Clock()
    absences = Absences(clock)
    running(absences, {})
    clock.now += AWAY + 1
    report = running(absences, {})
    assert (report.state, report.reason, report.is_proven_gone) == (base.FAILED, base.NODE_LOST, True)


def test_a_node_that_only_went_is_not_there_for_new_work():
    absences = Absences()
    assert absences.node("", {}) is None
    assert absences.node("gone", {}) is not None
    assert absences.node("node-a", NODES) is NODES["node-a"]
