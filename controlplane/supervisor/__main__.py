"""`python -m controlplane.supervisor`: the program behind `make up`. Runs in the foreground until SIGINT or
SIGTERM."""

import json
import os
import subprocess
import sys
import time

from controlplane.supervisor import programs
from controlplane.supervisor import supervise as keeping
from controlplane.supervisor.children import PR_SET_PDEATHSIG, PRCTL, Child
from controlplane.supervisor.instance import CHECKOUT, CannotStart, Instance, bind, claim, read_instance
from controlplane.supervisor.supervise import Keeper, answers, is_make_waiting, report


def main() -> int:
    """Run the instance until a signal ends it. Return exit code 0 after a requested stop, 1 if it could not start."""
    began = time.monotonic()
    try:
        instance = read_instance(os.environ)
        claim(instance)
        return _run(instance, began)
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 1


def _run(instance: Instance, began: float) -> int:
    listener = bind(instance)
    redis_url, redis = programs.redis(instance)
    environment = programs.child_environment(instance, redis_url)
    ready_reader, ready_writer = os.pipe()
    first = [*([redis] if redis else []), *programs.web(instance, listener, ready_reader, environment)]
    keeper = Keeper([Child(program, instance.control_dir) for program in first])
    keeper.listen_to_signals()
    # Redis and the web server start while the database is prepared, which shortens the start.
    keeper.tend()
    try:
        prepared = _prepare(environment)
        os.close(ready_writer)
        keeper.children += [Child(each, instance.control_dir) for each in programs.celery(environment)]
        _keep(keeper, instance, began, prepared)
    finally:
        stopping = time.monotonic()
        keeper.stop()
    report(
        f"Stopped in {time.monotonic() - stopping:.1f} s. Running jobs live on; `make up` finds them again."
    )
    return 0


def _prepare(environment: dict[str, str]) -> dict[str, str]:
    """Run checks, migrations and static files in a child process, whose memory is freed before the servers start.
    Return its JSON answer: `setup_path`, the path that creates the first admin, "" if one exists. Raise CannotStart
    if a step failed."""
    command = [sys.executable, "-m", "controlplane.supervisor.prepare"]
    answer = subprocess.run(
        command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, check=False, process_group=0
    )
    if answer.returncode != 0:
        raise CannotStart("Trainyard did not start; the message above names the cause.")
    prepared: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return prepared


def _keep(keeper: Keeper, instance: Instance, began: float, prepared: dict[str, str]) -> None:
    parent = os.getppid()
    _end_with_make(parent)
    is_announced = False
    tick = keeping.MAKE_TICK_SECONDS if "MAKELEVEL" in os.environ else keeping.TICK_SECONDS
    while not keeper.is_stopping:
        keeper.tend()
        if not is_announced and answers((_reachable(instance.host), instance.port)):
            is_announced = True
            _announce(instance, time.monotonic() - began, prepared)
        keeper.sleep(tick if is_announced else keeping.STARTING_TICK_SECONDS)
        # Not by `|=`, which would undo a request that arrives during the call.
        if is_make_waiting(parent):
            keeper.is_stopping = True


def _announce(instance: Instance, seconds: float, prepared: dict[str, str]) -> None:
    report(f"\nTrainyard is up after {seconds:.1f} s:  {instance.public_url}")
    if prepared["setup_path"]:
        report(
            f"First admin, once:             {instance.public_url}{prepared['setup_path']}  (within 24 hours)"
        )
    report(
        f"Command line:                  {CHECKOUT / '.venv' / 'bin' / 'yard'} login {instance.public_url}",
        f"Logs:                          {instance.control_dir}",
        "Ctrl-C stops the control plane; running jobs live on.\n",
    )


def _end_with_make(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when make (process id `parent`) is killed. Does nothing if make
    did not start it. Raise CannotStart if make has ended already."""
    if PRCTL is not None and "MAKELEVEL" in os.environ:
        PRCTL(PR_SET_PDEATHSIG, 15)
        # The signal is not sent for a parent that ended before the call.
        if os.getppid() != parent:
            raise CannotStart("make has gone.")


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host.strip("[]"))


if __name__ == "__main__":
    sys.exit(main())
