"""`make test`: the machine's packages, the static checks, then every test on SQLite and on PostgreSQL.

Goes on after a failing step, so that one run tells everything, and ends with 1 if any failed. The last step is the
whole suite, whose summary is the last line.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests import kube, servers  # noqa: E402  needs the path above
from tools.kube import build  # noqa: E402  the same

# Debian package: how to see that it is there
PACKAGES: dict[str, Callable[[], object]] = {
    "postgresql": servers.postgres_home,
    "redis-server": lambda: shutil.which("redis-server"),
    "chromium": servers.chromium,
    "fonts-dejavu-core": lambda: Path("/usr/share/fonts/truetype/dejavu").exists(),
    "iproute2": lambda: shutil.which("ip"),
    "containerd": lambda: shutil.which("containerd"),
    "runc": lambda: shutil.which("runc"),
    "containernetworking-plugins": Path("/usr/lib/cni/bridge").exists,
    "busybox-static": Path("/bin/busybox").exists,
    "prometheus": lambda: shutil.which("prometheus"),
    "openssh-server": Path("/usr/sbin/sshd").exists,
}
STATIC_CHECKS = {
    "ruff": ["-m", "ruff", "check", "."],
    "format": ["-m", "ruff", "format", "--check", "."],
    "mypy": ["-m", "mypy"],
    "checks": ["manage.py", "check", "--fail-level", "ERROR"],
    "migrations": ["manage.py", "makemigrations", "--check", "--dry-run"],
}
# The quick and pure first; what needs real servers or a browser last. Every other folder of tests comes between.
FIRST = ("house", "pure", "scenarios", "contract", "app", "loop")
LAST = ("supervisor", "up", "faults", "browser")
# What reads and writes the database; the rest would only repeat itself there.
POSTGRES_SUITES = ("scenarios", "app", "loop", "live")


def main() -> int:
    """Exit code 0 when everything passed."""
    install_packages()
    prepare_kubernetes()
    failed = [name for name, command in STATIC_CHECKS.items() if not _step(name, command)]
    if not check_on_postgres():
        failed.append("tests on PostgreSQL")
    if failed:
        print(f"\nfailed before the main suite: {', '.join(failed)}", flush=True)
    passed = _step("tests on SQLite", ["-m", "pytest", "-q", *_suites(_all_suites())])
    return 0 if passed and not failed else 1


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
    except build.CannotBuild as error:
        reason = str(error)
    if reason:
        print(f"Tests on Kubernetes are skipped where they need it: {reason}", flush=True)


def check_on_postgres() -> bool:
    """Run the suites that touch the database on a PostgreSQL server of our own; True when they pass or cannot run."""
    if servers.postgres_home() is None:
        print(
            "\n== tests on PostgreSQL: skipped, there is no server on this machine (apt-get install postgresql)"
        )
        return True
    arguments = ["-m", "pytest", "-q", "-m", "not browser", *_suites(POSTGRES_SUITES)]
    with servers.postgres() as url:
        return _step("tests on PostgreSQL", arguments, {"DATABASE_URL": url})


def _all_suites() -> Sequence[str]:
    found = sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir())
    between = [name for name in found if name not in (*FIRST, *LAST)]
    return (*FIRST, *between, *LAST)


def _suites(names: Sequence[str]) -> list[str]:
    return [f"tests/{name}" for name in names if any((ROOT / "tests" / name).rglob("test_*.py"))]


def _apt(*arguments: str) -> int:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "-qq", *arguments]
    return subprocess.run(command, stdout=subprocess.DEVNULL, env=environment, check=False).returncode


def _step(name: str, command: list[str], variables: Mapping[str, str] | None = None) -> bool:
    print(f"\n== {name}", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="trainyard-check-") as state:
        environment = {**_clean_environment(), "TRAINYARD_STATE_DIR": state, **(variables or {})}
        passed = (
            subprocess.run([sys.executable, *command], cwd=ROOT, env=environment, check=False).returncode == 0
        )
    if "pytest" not in command:  # a test summary speaks for itself, and stays the last line
        print(f"{name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - began:.1f} s", flush=True)
    return passed


def _clean_environment() -> dict[str, str]:
    """Without the variables of an instance that this shell may be set up for."""
    ours = ("TRAINYARD_", "DATABASE_URL", "DJANGO_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


if __name__ == "__main__":
    sys.exit(main())
