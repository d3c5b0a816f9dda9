"""DVC, restic and borg for `bench.datasets`: installed into a temporary directory, and run as in their
documentation."""

import os
import shutil
import subprocess
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DVC = "dvc==3.67.1"
DEBIAN = ("restic", "borgbackup", "python3-msgpack", "python3-packaging", "libxxhash0")
PASSWORD = "bench"  # of repositories that are thrown away


def install(home: Path) -> None:
    """Install the missing peers into `home`: DVC from PyPI; restic and borg unpacked from Debian's packages."""
    if not (home / "venv" / "bin" / "dvc").exists():
        venv.create(home / "venv", with_pip=True)
        subprocess.run([home / "venv" / "bin" / "pip", "install", "-q", DVC], check=True)
    if not (home / "debian").exists():
        packages = home / "packages"
        packages.mkdir()
        subprocess.run(["apt-get", "download", "-qq", *DEBIAN], cwd=packages, check=True)
        for package in packages.iterdir():
            subprocess.run(["dpkg", "-x", package, home / "debian"], check=True)


@dataclass(frozen=True, slots=True)
class Peer:
    """A program to compare with: commands that create its repository (`begin`), store the tree `data` and restore
    it, run in the directory that has `data`."""

    name: str
    begin: Sequence[Sequence[str]]
    store: Sequence[str]
    restore: Sequence[str]
    environment: Mapping[str, str]

    def run(self, command: Sequence[str], directory: Path) -> None:
        """Run one command. Raises CalledProcessError with its output."""
        environment = {**os.environ, **self.environment}
        subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)


def peers(home: Path, work: Path) -> dict[str, Peer]:
    """Return the three programs that `install` put into `home`, by name, with their repositories and caches below
    `work`."""
    dvc = str(home / "venv" / "bin" / "dvc")
    restic, borg = str(home / "debian/usr/bin/restic"), str(home / "debian/usr/bin/borg")
    bare = {"HOME": str(work / "home"), "XDG_CACHE_HOME": str(work / "cache")}
    libraries = {
        "PYTHONPATH": str(home / "debian/usr/lib/python3/dist-packages"),
        "LD_LIBRARY_PATH": str(home / "debian/usr/lib/x86_64-linux-gnu"),
        "BORG_BASE_DIR": str(work / "borg-base"),
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    }
    python = shutil.which("python3", path="/usr/bin") or "python3"
    run_borg = [python, borg]
    return {
        "DVC": Peer(
            "DVC",
            [[dvc, "init", "-q", "--no-scm"], [dvc, "config", "core.analytics", "false"]],
            [dvc, "add", "-q", "data"],
            [dvc, "checkout", "-q", "-f"],
            {**bare, "DVC_NO_ANALYTICS": "1"},
        ),
        "restic": Peer(
            "restic",
            [[restic, "-q", "-r", "restic", "init"]],
            [restic, "-q", "-r", "restic", "backup", "data"],
            [],
            {**bare, "RESTIC_PASSWORD": PASSWORD},
        ),
        "borg": Peer(
            "borg",
            [[*run_borg, "init", "-e", "none", "borg"]],
            [*run_borg, "create", "borg::{now:%H%M%S.%f}", "data"],
            [],
            {**bare, **libraries},
        ),
    }
