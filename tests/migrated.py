"""What a run of many suites makes once for all its control planes: an SQLite database with all migrations
applied, the same on PostgreSQL, and the collected static files. They take longest at the first start of a control
plane."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

CHECKOUT = Path(__file__).resolve().parent.parent
VARIABLE = "MIGRATED_DATABASE"
# Set where the database of DATABASE_URL was made for this run by copying a migrated one.
ON_POSTGRES = "MIGRATED_POSTGRES"
OF_AN_INSTANCE = (
    "TRAINYARD_",
    "DATABASE_",
    "DJANGO_",
)  # variables of the one that this shell may be set up for
STATIC = "static"
MIGRATE = ("manage.py", "migrate", "--verbosity=0", "--skip-checks")
GATHER = "from controlplane.supervisor import prepare; assert prepare.check_settings(); prepare.gather_static_files()"


def make(directory: Path) -> dict[str, str]:
    """Make the SQLite database and the static files in `directory`. Return the environment variable with which
    `lay_out` and `lay_out_static` find them."""
    for arguments in (MIGRATE, ["-c", GATHER]):
        _run(arguments, {"TRAINYARD_STATE_DIR": str(directory)})
    return {VARIABLE: str(directory / "db.sqlite3")}


def migrate(url: str) -> None:
    """Apply all migrations to the PostgreSQL database of this URL."""
    with TemporaryDirectory(prefix="trainyard-migrated-") as state_dir:
        _run(MIGRATE, {"TRAINYARD_STATE_DIR": state_dir, "DATABASE_URL": url})


def lay_out(path: Path) -> bool:
    """Copy the database to `path`. Return False, and do nothing, if the file exists or this run made no database."""
    source = os.environ.get(VARIABLE)
    if not source or path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    return True


def lay_out_static(state_dir: Path) -> None:
    """Copy the static files into this state directory, unless it has some or this run made none."""
    source = os.environ.get(VARIABLE)
    if source and not (state_dir / STATIC).exists():
        shutil.copytree(Path(source).with_name(STATIC), state_dir / STATIC)


def _run(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    """Run this Python with the arguments, the product's settings and these environment variables. Raises
    CalledProcessError if it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_AN_INSTANCE)}
    environment |= {"DJANGO_SETTINGS_MODULE": "controlplane.settings", **variables}
    subprocess.run([sys.executable, *arguments], cwd=CHECKOUT, env=environment, check=True)
