"""`python -m controlplane.supervisor.component ROLE`: run one component of the control plane in its own process.

For container platforms, which supervise the components themselves; `make up` runs all of them on one machine. The
components share PostgreSQL, Redis, the secret key and, for web, worker and loop, the log directory
(STATE_DIR/logs). Each component can recreate everything else in the state directory.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping

from controlplane.config.environment import SettingInvalid
from controlplane.config.state_files import close_below, make_private
from controlplane.supervisor import prepare, programs, web
from controlplane.supervisor.instance import CHECKOUT, CannotStart, Instance, bind, read_instance

SHARED = ("DATABASE_URL", "TRAINYARD_REDIS_URL", "TRAINYARD_SECRET_KEY")


def main(arguments: list[str]) -> int:
    """Run the component that `arguments` name. Return exit code 0 when it has ended, 1 if it cannot start, 2 for an
    unknown one. All but `web` and `migrate` replace this process, so that the call does not return."""
    if len(arguments) != 1 or arguments[0] not in PARTS:
        print(f"Name one part: {', '.join(PARTS)}.", file=sys.stderr)
        return 2
    try:
        instance = read_instance(os.environ)
        _require_shared(os.environ)
        make_private(instance.state_dir)
        close_below(instance.state_dir)
        instance.control_dir.mkdir(mode=0o700, exist_ok=True)
        os.environ.update(programs.child_environment(instance, instance.redis_url))
        PARTS[arguments[0]](instance)
    except (CannotStart, SettingInvalid) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _require_shared(env: Mapping[str, str]) -> None:
    """Raise CannotStart unless database, Redis and secret key are set: by default each component would create its
    own."""
    missing = [name for name in SHARED if not env.get(name)]
    if missing:
        raise CannotStart(
            f"Components that run separately share these settings, so they must be set: {', '.join(missing)}."
        )


def _migrate(instance: Instance) -> None:
    """Migrate the database, register what the settings declare, and print one JSON object with the link of the first
    admin. Raise CannotStart if the settings cannot be used."""
    if prepare.check_settings():
        prepare.prepare_database()
        path = prepare.setup_path()
        done = {"migrated": True, "first_admin": f"{instance.public_url}{path}" if path else ""}
        print(json.dumps(done), flush=True)
    else:
        raise CannotStart("The settings cannot be used; the message above names the cause.")


def _web(instance: Instance) -> None:
    if not prepare.check_settings():
        raise CannotStart("The settings cannot be used; the message above names the cause.")
    prepare.gather_static_files()
    listener = bind(instance)
    reader, writer = os.pipe()
    # `make up` keeps the write end open until the database is ready; here the web process need not wait.
    os.close(writer)
    web.serve(listener.fileno(), reader)


def _worker(instance: Instance) -> None:
    _become(programs.celery(os.environ)[0])


def _tasks(instance: Instance) -> None:
    _become(programs.celery(os.environ)[1])


def _loop(instance: Instance) -> None:
    """Run the loop without Celery, for deployments in which no other process sends it wake-ups."""
    arguments = (sys.executable, str(CHECKOUT / "manage.py"), "runloop")
    _become(programs.Program("loop", arguments, os.environ))


def _become(program: programs.Program) -> None:
    """Replace this process with the program, so that the program itself receives its container's signals."""
    os.chdir(CHECKOUT)
    os.execve(program.arguments[0], program.arguments, program.environment)


PARTS: dict[str, Callable[[Instance], None]] = {
    "web": _web,
    "worker": _worker,
    "tasks": _tasks,
    "loop": _loop,
    "migrate": _migrate,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
