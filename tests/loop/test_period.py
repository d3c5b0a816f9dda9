"""The loop's period: a second while anything is unfinished, longer while nothing is, short again when notified."""

import threading
import time

import pytest

from controlplane.loop import period
from controlplane.loop.period import PERIOD_SECONDS, QUIET_SECONDS, Period, is_quiet
from controlplane.models import Cluster, Command
from tests.builders import make_job, make_project

pytestmark = pytest.mark.django_db


def test_all_is_quiet_when_nothing_is_unfinished() -> None:
    project = make_project()
    assert is_quiet()
    job = make_job(project)
    assert not is_quiet(), "a queued job"
    type(job).objects.update(state="succeeded")
    assert is_quiet()
    command = Command.objects.create(kind="check_cluster", subject_kind="cluster", subject_id="prod")
    assert not is_quiet(), "a command"
    Command.objects.about("cluster", "prod").cancel()
    assert is_quiet()
    command.refresh_from_db()
    Cluster.objects.update(is_reachable=False)
    assert not is_quiet(), "a cluster that does not answer"


def test_a_quiet_loop_is_roused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(period, "QUIET_SECONDS", 60.0)
    monkeypatch.setattr(period, "is_quiet", lambda: True)
    pace, waiting = Period(), threading.Event()
    pace.settle()
    ended = threading.Thread(target=lambda: (waiting.set(), pace.pause(threading.Event(), 0.0)))
    began = time.monotonic()
    ended.start()
    waiting.wait(20)
    pace.rouse()
    ended.join(30)
    assert not ended.is_alive()
    assert time.monotonic() - began < 30


def test_the_period_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Period()
    assert pace.seconds == PERIOD_SECONDS
    for quiet, seconds in ((True, QUIET_SECONDS), (False, PERIOD_SECONDS)):
        monkeypatch.setattr(period, "is_quiet", lambda quiet=quiet: quiet)
        pace.settle()
        assert pace.seconds == seconds
