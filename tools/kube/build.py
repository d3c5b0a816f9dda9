"""Find the programs of a Kubernetes cluster, or of other Go modules, and build missing ones.

Searched are `KUBEBUILDER_ASSETS` (a directory), then the cache outside of the checkout; missing programs are
built with Go from our modules beside this file, whose go.sum pins every byte. A first build takes about five
minutes on two cores.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = "1.34.4"
HERE = Path(__file__).resolve().parent
GO_HOMES = ("/usr/local/go/bin", "/usr/lib/go/bin", "/opt/homebrew/bin")
UNFINISHED = ".building-"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of programs: packages of a module of ours, or one `go install` (`module` empty)."""

    programs: tuple[str, ...]
    packages: tuple[str, ...]
    module: str = ""


_MINOR = KUBERNETES.split(".")[1]
_VERSION = "k8s.io/component-base/version"
# Without a version, a server reports v0.0.0, which some clients reject.
LINKER_FLAGS = (
    f"-s -w -X {_VERSION}.gitVersion=v{KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={_MINOR}"
)
KUBERNETES_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
CSI_SIDECARS = {
    "csi-provisioner": "external-provisioner/v6/cmd/csi-provisioner",
    "csi-resizer": "external-resizer/v2/cmd/csi-resizer",
    "csi-snapshotter": "external-snapshotter/v8/cmd/csi-snapshotter",
    "snapshot-controller": "external-snapshotter/v8/cmd/snapshot-controller",
}
SOURCES = (
    Source(("etcd",), ("go.etcd.io/etcd/server/v3",), "etcd"),
    Source(
        KUBERNETES_PROGRAMS,
        tuple(f"k8s.io/kubernetes/cmd/{name}" for name in KUBERNETES_PROGRAMS),
        "kubernetes",
    ),
    Source(("coredns",), (".",), "coredns"),
    Source(
        (*CSI_SIDECARS, "csi-directories"),
        (*(f"github.com/kubernetes-csi/{path}" for path in CSI_SIDECARS.values()), "./csi-directories"),
        "csi",
    ),
    Source(("kwok",), ("sigs.k8s.io/kwok/cmd/kwok@v0.7.0",)),
    Source(("helm",), ("helm.sh/helm/v3/cmd/helm@v3.22.0",)),
)


@dataclass(frozen=True, slots=True)
class Programs:
    """Programs that are built and cached together, in the directory `folder` of the cache."""

    folder: str
    sources: tuple[Source, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for source in self.sources for name in source.programs)

    @property
    def directory(self) -> Path:
        """Return the directory of the built programs; never in the checkout."""
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "trainyard" / self.folder


CLUSTER = Programs(f"kube-{KUBERNETES}", SOURCES)
PROGRAMS = CLUSTER.names


class CannotBuild(Exception):
    """The programs are missing and cannot be built; the message is one sentence with the reason."""


def find(programs: Programs = CLUSTER) -> dict[str, Path]:
    """Return the paths of those programs that exist, by name."""
    places = [Path(assets)] if (assets := os.environ.get("KUBEBUILDER_ASSETS")) else []
    places.append(programs.directory)
    found = {
        name: next((place / name for place in places if (place / name).is_file()), None)
        for name in programs.names
    }
    return {name: path for name, path in found.items() if path is not None}


def ready(say: Say = print, programs: Programs = CLUSTER) -> dict[str, Path]:
    """Build missing programs; return the path of every program by name. `say`: gets lines about the progress.
    Raises CannotBuild if a program is missing and Go is missing or its build fails."""
    if len(found := find(programs)) < len(programs.names):
        with _alone(programs.directory, say):
            _build(programs, say)
        found = find(programs)
    return found


def cache_dir() -> Path:
    """Return the cache directory of the cluster's programs, which may not exist."""
    return CLUSTER.directory


def _build(programs: Programs, say: Say) -> None:
    missing = [source for source in programs.sources if not set(source.programs) <= set(find(programs))]
    go, place = _go(programs), programs.directory
    # Left by a builder that was killed: this process holds the lock, so no other one builds.
    for left in place.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left)
    for number, source in enumerate(missing, 1):
        say(f"building {', '.join(source.programs)} with {go} ({number} of {len(missing)})")
        began = time.monotonic()
        # Built beside its final place, so that it appears there complete, by rename.
        with tempfile.TemporaryDirectory(dir=place, prefix=UNFINISHED) as directory:
            _run_go(go, source, Path(directory))
            for name in source.programs:
                os.replace(Path(directory) / name, place / name)
        say(f"built {', '.join(source.programs)} in {time.monotonic() - began:.0f} s")


def _run_go(go: str, source: Source, directory: Path) -> None:
    environment = {
        **os.environ,
        "GOFLAGS": "-mod=readonly -trimpath",
        "GOBIN": str(directory),
        "CGO_ENABLED": "0",
    }
    if source.module:
        target = str(directory / source.programs[0]) if len(source.programs) == 1 else f"{directory}/"
        command = [go, "build", "-o", target, "-ldflags", LINKER_FLAGS, *source.packages]
    else:
        # `go install` of a version does not accept -mod.
        environment["GOFLAGS"] = "-trimpath"
        command = [go, "install", "-ldflags", "-s -w", *source.packages]
    folder = HERE / source.module
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        words = result.stderr.strip().splitlines() or ["it said nothing"]
        names = ", ".join(source.programs)
        raise CannotBuild(f"Go could not build {names} (is the module proxy reachable?): {words[-1]}")


def _go(programs: Programs) -> str:
    path = os.pathsep.join([os.environ.get("PATH", ""), *GO_HOMES])
    if (go := shutil.which("go", path=path)) is None:
        missing = ", ".join(name for name in programs.names if name not in find(programs))
        raise CannotBuild(
            f"{missing} are not in KUBEBUILDER_ASSETS or {programs.directory}, and there is no Go to build them with."
        )
    return go


@contextmanager
def _alone(place: Path, say: Say) -> Iterator[None]:
    """Context manager that holds a lock in the directory `place`, so that one process on this machine builds at a
    time; others wait, after a line to `say`, and use its result."""
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build of the same programs")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
