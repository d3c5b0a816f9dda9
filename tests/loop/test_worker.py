"""The worker's process, as Celery runs it: it hosts the loop, or it is not there."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from controlplane.loop.runner import Runner
from controlplane.loop.wake import listen
from tests.servers import CHECKOUT, free_port
from tests.waiting import patience

BROKEN = (
    "import sys; sys.modules['controlplane.loop.runner'] = None;"
    " from django.core.management import execute_from_command_line as run; run(['manage.py', 'loopworker'])"
)


def test_a_worker_that_cannot_load_the_loop_ends_with_the_error(tmp_path: Path):
    command = [sys.executable, "-c", BROKEN]
    told = {
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "TRAINYARD_STATE_DIR": str(tmp_path),
        "TRAINYARD_REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
    }
    ended = subprocess.run(
        command,
        cwd=CHECKOUT,
        env=os.environ | told,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    assert ended.returncode == 1
    assert "controlplane.loop.runner halted; None in sys.modules" in ended.stderr


# The signal reaches another thread than the one that sleeps: so does, in effect, one that comes while it falls asleep.
SIGNALLED_ELSEWHERE = """
import signal, sys, threading
from types import SimpleNamespace
from controlplane.management.commands import runloop

def signal_when_the_main_thread_sleeps():
    place, looks = None, 0
    while looks < 20:
        now = sys._current_frames()[threading.main_thread().ident].f_lasti
        place, looks = now, looks + 1 if now == place else 0
        threading.Event().wait(0.005)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

start = threading.Thread(target=signal_when_the_main_thread_sleeps).start
runloop.Runner = lambda **_: SimpleNamespace(start=start, stop=lambda: print("stopped"))
runloop.Command().handle()
"""


def test_a_signal_that_wakes_no_sleeper_ends_the_loop_too():
    ended = subprocess.run(
        [sys.executable, "-c", "import django; django.setup()" + SIGNALLED_ELSEWHERE],
        cwd=CHECKOUT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"},
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr


def test_a_stop_that_comes_while_a_thread_begins_is_a_stop(monkeypatch: pytest.MonkeyPatch):
    loop, start = Runner(), threading.Thread.start
    listen(loop.wake)

    def start_late(thread: threading.Thread) -> None:
        monkeypatch.undo()
        loop.stop(0)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_late)
    loop._spawn("late", lambda: None, None)
    loop._threads[0].join(patience(5))
    assert not loop._threads[0].is_alive()


def test_without_a_kubernetes_cluster_its_client_is_not_imported(tmp_path: Path):
    """It takes half a second and 40 MiB of each process."""
    heavy = "('kubernetes', 'aiohttp', 'websocket', 'oauthlib')"
    script = f"import sys, controlplane.asgi, controlplane.loop.runner; print([m for m in {heavy} if m in sys.modules])"
    settings = {"TRAINYARD_STATE_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, env=os.environ | settings, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[]"
