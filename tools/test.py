"""`make test`: install the machine's packages, run the static checks and every test; on PostgreSQL those
whose result may differ there.

All of it runs in concurrent checks (tools/checks.py), since tests on Kubernetes mostly wait. Continues after a
failing check, so that one run shows all failures, and exits with 1 if any failed. The last line is the summary
of all.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import kube, migrated, servers  # noqa: E402  needs the path above
from tools.checks import Check, run  # noqa: E402  the same
from tools.kube import build  # noqa: E402  the same

# Debian package: command or file that shows that it is installed.
PACKAGES: dict[str, Callable[[], object]] = {
    "postgresql": servers.postgres_home,
    "chromium-headless-shell": lambda: shutil.which("chromium-headless-shell"),
    "fonts-dejavu-core": lambda: Path("/usr/share/fonts/truetype/dejavu").exists(),
    "iproute2": lambda: shutil.which("ip"),
    "containerd": lambda: shutil.which("containerd"),
    "runc": lambda: shutil.which("runc"),
    "containernetworking-plugins": Path("/usr/lib/cni/bridge").exists,
    "busybox-static": Path("/bin/busybox").exists,
    "prometheus": lambda: shutil.which("prometheus"),
    "openssh-server": Path("/usr/sbin/sshd").exists,
    "xfsprogs": Path("/usr/sbin/mkfs.xfs").exists,
    "btrfs-progs": Path("/usr/sbin/mkfs.btrfs").exists,
}
PYTEST = ["-m", "pytest", "-q"]
# At least 4 also with fewer CPUs: a check waits for more than half of its time.
AT_ONCE = max(4, os.cpu_count() or 1)
STATIC_CHECKS = {
    "ruff": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    # It runs Django's system checks first, as most commands do.
    "migrations": ["manage.py", "makemigrations", "--check", "--dry-run"],
}
# The order in which checks begin. It keeps both cores of a small machine busy to the end: the longest first, and last
# those that wait for others and are busy throughout; a check that mostly waits leaves a core idle if it is among the
# last. Clusters create and remove networks, which Chromium takes for lost connections, so the browser's check has its
# own network. Test folders not named here run in one more check. It and "access and command line" are two, because one
# would run for half a minute alone at the end.
ON_SQLITE = (
    Check("engines and scenarios", [*PYTEST, "tests/contract", "tests/scenarios", "-m", "not real_node"]),
    Check("browser", [*PYTEST, "tests/gateway", "tests/browser"], needs_still_network=True),
    Check("pages and API", [*PYTEST, "tests/app"]),
    Check("loop and feed", [*PYTEST, "tests/loop", "tests/live"]),
    Check("Kubernetes, a real node", [*PYTEST, "tests/kubernetes", "tests/contract", "-m", "real_node"]),
    Check("make up and faults", [*PYTEST, "tests/up", "tests/faults"]),
    Check("Kubernetes, fake nodes", [*PYTEST, "tests/kubernetes", "-m", "not real_node"]),
    Check("access and command line", [*PYTEST, "tests/access", "tests/cli"]),
)
# Checks that also run on PostgreSQL: a whole control plane, and of the checks that use the database those tests
# whose queries no other test makes (tests/statements.py), as recorded on SQLite. If a check fails before it
# has recorded them, all its tests run.
ON_BOTH = Check("four teams", [*PYTEST, "tests/scenarios/test_four_teams_rest.py"])
TWICE = ("pages and API", "loop and feed")
STATEMENTS = ["-p", "tests.statements"]


def main() -> int:
    """Run all checks and tests. Return what `checks.run` returns: 0 if all passed."""
    install_packages()
    prepare_kubernetes()
    with ExitStack() as stack, ThreadPoolExecutor(1) as beside:
        records = Path(stack.enter_context(TemporaryDirectory(prefix="trainyard-records-")))
        server = beside.submit(migrated_postgres, stack.enter_context(ExitStack()))
        ready = migrated.make(Path(stack.enter_context(TemporaryDirectory(prefix="trainyard-migrated-"))))
        on_sqlite = [
            replace(recorded(check, records) if check.name in TWICE else check, variables=ready)
            for check in (*ON_SQLITE, of_other_folders())
        ]
        return run(
            [*static_checks(), *on_sqlite, *on_postgres(server.result(), ready, records)], at_once=AT_ONCE
        )


def install_packages() -> None:
    """Install Debian's packages if permitted; print what is skipped otherwise."""
    missing = [name for name, find in PACKAGES.items() if not find()]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(
            f"Not here, and not ours to install: {', '.join(missing)}. The tests that need them are skipped."
        )
        return
    print(f"installing {', '.join(missing)}", flush=True)
    _apt("update")
    # One by one: a package that a release lacks must not prevent the installation of the others.
    for name in missing:
        if _apt("install", "-y", "--no-install-recommends", name) != 0:
            print(f"{name} could not be installed; the tests that need it are skipped.", flush=True)


def prepare_kubernetes() -> None:
    """Build the programs of a cluster before any test waits for them; print what is skipped if that is
    impossible."""
    reason = kube.why_not(node=True)
    try:
        if not kube.why_not():
            build.ready(lambda words: print(words, flush=True))
            compile_torch()
    except build.CannotBuild as error:
        reason = str(error)
    if reason:
        print(f"Tests on Kubernetes are skipped where they need it: {reason}", flush=True)


def compile_torch() -> None:
    """Compile torch's bytecode unless that is done."""
    # Containers mount this environment read-only, so each would compile it for itself.
    torch = find_spec("torch")
    if torch and torch.origin and not Path(cache_from_source(torch.origin)).exists():
        subprocess.run([sys.executable, "-c", "import torch"], check=True)


def of_other_folders() -> Check:
    """Return a check with the tests that no other check names."""
    named = {word for check in ON_SQLITE for word in check.arguments}
    found = sorted(path for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py")))
    others = [name for name in (f"tests/{path.name}" for path in found) if name not in named]
    return Check("all other suites", [*PYTEST, *others])


def recorded(check: Check, records: Path) -> Check:
    """Return the check with options that record its tests' queries, in a file in the directory `records`."""
    return replace(
        check, arguments=[*check.arguments, *STATEMENTS, f"--record-statements={record_of(check, records)}"]
    )


def record_of(check: Check, records: Path) -> Path:
    """Return the path of the file with the recorded queries of a check."""
    return records / check.name.replace(" ", "-")


def migrated_postgres(stack: ExitStack) -> str:
    """Start a PostgreSQL server, which runs until the stack is closed, and migrate its database. Return the URL
    of that, "" if PostgreSQL is not installed."""
    if servers.postgres_home() is None:
        print("Tests on PostgreSQL are skipped: there is no server here (apt-get install postgresql).")
        return ""
    url = _copied(stack.enter_context(servers.postgres()), "template1", "migrated")
    migrated.migrate(url)
    return url


def on_postgres(url: str, ready: Mapping[str, str], records: Path) -> Iterator[Check]:
    """Yield the checks on PostgreSQL, none if `url` is empty. Each gets its own copy of the migrated database at
    `url`. `ready`: environment variables of all; `records`: the directory of the recorded queries."""
    twice = [
        replace(
            check,
            arguments=[*check.arguments, *STATEMENTS, f"--needed-by={record_of(check, records)}"],
            after=check.name,
        )
        for check in ON_SQLITE
        if check.name in TWICE
    ]
    for number, check in enumerate([*twice, ON_BOTH] if url else ()):
        own = {"DATABASE_URL": _copied(url, "migrated", f"check{number}"), migrated.ON_POSTGRES: "yes"}
        yield replace(check, name=f"{check.name} on PostgreSQL", variables={**ready, **own})


def _copied(url: str, template: str, name: str) -> str:
    """Create the database `name` as a copy of `template` on the server of this URL; return the URL of the new
    one."""
    home, address = servers.postgres_home(), url.rpartition("/")[0]
    assert home is not None
    maintenance = f"--maintenance-db={address}/postgres"
    subprocess.run([home / "createdb", maintenance, f"--template={template}", name], check=True)
    return f"{address}/{name}"


def static_checks() -> Iterator[Check]:
    """Yield the checks that only read the source."""
    for name, words in STATIC_CHECKS.items():
        yield Check(name, words)


def _apt(*arguments: str) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-qq", *arguments]
    return subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
