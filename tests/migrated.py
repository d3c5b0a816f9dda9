"""An SQLite database with every migration applied, which a run of many suites makes once: applying them takes longer
than all else at the start of a control plane."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
VARIABLE = "MIGRATED_DATABASE"
OF_AN_INSTANCE = (
    "TRAINYARD_",
    "DATABASE_",
    "DJANGO_",
)  # variables of the one that this shell may be set up for


def make(directory: Path) -> dict[str, str]:
    """Make one in the directory; return the variable with which `lay_out` finds it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_AN_INSTANCE)}
    environment |= {"TRAINYARD_STATE_DIR": str(directory)}
    command = [sys.executable, "manage.py", "migrate", "--verbosity=0", "--skip-checks"]
    subprocess.run(command, cwd=CHECKOUT, env=environment, check=True)
    return {VARIABLE: str(directory / "db.sqlite3")}


def lay_out(path: Path) -> bool:
    """Copy it to `path`, unless there is a file or this run made none; return whether it was copied."""
    source = os.environ.get(VARIABLE)
    if not source or path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    return True
