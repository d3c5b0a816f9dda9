"""`make test`: the machine's packages, the static checks, and every test; on PostgreSQL those that may differ there.

All of it in lanes side by side (tools/lanes.py), since tests on Kubernetes mostly wait. Goes on after a failing lane,
so that one run tells everything, and ends with 1 if any failed. The last line is the summary of all.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import kube, migrated, servers  # noqa: E402  needs the path above
from tools.kube import build  # noqa: E402  the same
from tools.lanes import Lane, run  # noqa: E402  the same

# Debian package: how to see that it is there
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
}
PYTEST = ["-m", "pytest", "-q"]
AT_ONCE = max(4, os.cpu_count() or 1)  # a lane spends more than half of its time waiting
STATIC_CHECKS = {
    "ruff": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    # It runs Django's system checks first, as most commands do.
    "migrations": ["manage.py", "makemigrations", "--check", "--dry-run"],
}
# Those first that another lane waits for, then the longest, so that none is alone at the end. Clusters come and go with
# their networks, which Chromium takes for broken lines. All folders of tests that are named nowhere are one more lane.
ON_SQLITE = (
    Lane("pages and API", [*PYTEST, "tests/app"]),
    Lane("loop and feed", [*PYTEST, "tests/loop", "tests/live"]),
    Lane("Kubernetes, a real node", [*PYTEST, "tests/kubernetes", "tests/contract", "-m", "real_node"]),
    Lane("Kubernetes, fake nodes", [*PYTEST, "tests/kubernetes", "-m", "not real_node"]),
    Lane("browser", [*PYTEST, "tests/gateway", "tests/browser"], needs_still_network=True),
)
SHORT = (
    Lane("make up and faults", [*PYTEST, "tests/up", "tests/faults"]),
    Lane("engines and scenarios", [*PYTEST, "tests/contract", "tests/scenarios", "-m", "not real_node"]),
)
# What runs on PostgreSQL too: a whole control plane, and of the lanes that read and write the database those tests that
# ask of it what no other does (tests/statements.py), by what they asked of SQLite. Where a lane failed before it wrote
# that down, all its tests run.
ON_BOTH = Lane("four teams", [*PYTEST, "tests/scenarios/test_four_teams_rest.py"])
TWICE = ("pages and API", "loop and feed")
STATEMENTS = ["-p", "tests.statements"]


def main() -> int:
    """Exit code 0 when everything passed."""
    install_packages()
    prepare_kubernetes()
    with ExitStack() as stack:
        records = Path(stack.enter_context(TemporaryDirectory(prefix="trainyard-records-")))
        ready = migrated.make(Path(stack.enter_context(TemporaryDirectory(prefix="trainyard-migrated-"))))
        long, short = (
            [
                replace(recorded(lane, records) if lane.name in TWICE else lane, variables=ready)
                for lane in lanes
            ]
            for lanes in ((*ON_SQLITE, of_other_folders()), SHORT)
        )
        lanes = [*static_checks(), *long, *on_postgres(stack, records), *short]
        return run(lanes, at_once=AT_ONCE)


def install_packages() -> None:
    """Bring Debian's packages where we may; say what is skipped where we may not."""
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
    for name in missing:  # one by one: a package that a release lacks must not cost the others
        if _apt("install", "-y", "--no-install-recommends", name) != 0:
            print(f"{name} could not be installed; the tests that need it are skipped.", flush=True)


def prepare_kubernetes() -> None:
    """Build what a cluster needs before any test waits for it; say what is skipped where that cannot be."""
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
    """Containers mount this environment read-only: what is not compiled, each of them compiles for itself."""
    torch = find_spec("torch")
    if torch and torch.origin and not Path(cache_from_source(torch.origin)).exists():
        subprocess.run([sys.executable, "-c", "import torch"], check=True)


def of_other_folders() -> Lane:
    """The tests that no lane of the table names."""
    named = {word for lane in (*ON_SQLITE, *SHORT) for word in lane.arguments}
    found = sorted(path for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py")))
    others = [name for name in (f"tests/{path.name}" for path in found) if name not in named]
    return Lane("all other suites", [*PYTEST, *others])


def recorded(lane: Lane, records: Path) -> Lane:
    """The same lane, which writes what its tests ask of the database."""
    return replace(
        lane, arguments=[*lane.arguments, *STATEMENTS, f"--record-statements={record_of(lane, records)}"]
    )


def record_of(lane: Lane, records: Path) -> Path:
    """Where it writes that."""
    return records / lane.name.replace(" ", "-")


def on_postgres(stack: ExitStack, records: Path) -> Iterator[Lane]:
    """On a PostgreSQL server of our own, which stands as long as the stack. Each lane has a database there."""
    home = servers.postgres_home()
    if home is None:
        print("Tests on PostgreSQL are skipped: there is no server here (apt-get install postgresql).")
        return
    url = stack.enter_context(servers.postgres())
    twice = [
        replace(
            lane,
            arguments=[*lane.arguments, *STATEMENTS, f"--needed-by={record_of(lane, records)}"],
            after=lane.name,
        )
        for lane in ON_SQLITE
        if lane.name in TWICE
    ]
    for number, lane in enumerate([ON_BOTH, *twice]):
        subprocess.run([home / "createdb", f"--maintenance-db={url}", f"lane{number}"], check=True)
        variables = {"DATABASE_URL": f"{url.rpartition('/')[0]}/lane{number}"}
        yield replace(lane, name=f"{lane.name} on PostgreSQL", variables=variables)


def static_checks() -> Iterator[Lane]:
    """What only reads the source."""
    for name, words in STATIC_CHECKS.items():
        yield Lane(name, words)


def _apt(*arguments: str) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-qq", *arguments]
    return subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
