"""What a run of many suites makes once for all its control planes: an SQLite database with every migration applied, and
the gathered static files. Both take longer than all else at the first start of a control plane."""

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
STATIC = "static"
GATHER = "from controlplane.supervisor import prepare; assert prepare.check_settings(); prepare.gather_static_files()"


def make(directory: Path) -> dict[str, str]:
    """Make both in the directory; return the variable with which `lay_out` and `lay_out_static` find them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_AN_INSTANCE)}
    environment |= {"TRAINYARD_STATE_DIR": str(directory)}
    environment |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings"}
    for arguments in (["manage.py", "migrate", "--verbosity=0", "--skip-checks"], ["-c", GATHER]):
        subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, env=environment, check=True)
    return {VARIABLE: str(directory / "db.sqlite3")}


def lay_out(path: Path) -> bool:
    """Copy the database to `path`, unless there is a file or this run made none; return whether it was copied."""
    source = os.environ.get(VARIABLE)
    if not source or path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    return True


def lay_out_static(state_dir: Path) -> None:
    """Copy the static files to where an instance with this state directory gathers them, if this run made them."""
    source = os.environ.get(VARIABLE)
    if source and not (state_dir / STATIC).exists():
        shutil.copytree(Path(source).with_name(STATIC), state_dir / STATIC)
