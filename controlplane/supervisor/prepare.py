"""Steps before the servers start: check settings, migrate the database, collect static files, create the setup
link.

Prints one JSON object for the supervisor on stdout; problems that the operator must fix are printed on stderr.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.config.environment import SettingInvalid
from controlplane.config.garbage import collect_rarely


def main() -> int:
    """Run all steps. Return exit code 0, or 1 if the settings cannot be used; errors of the other steps propagate."""
    collect_rarely()
    if not check_settings():
        return 1
    close_state_files()
    ignore_wake_ups()
    prepare_database()
    gather_static_files()
    print(json.dumps({"setup_path": setup_path()}))
    return 0


def check_settings() -> bool:
    """Set up Django and print problems of the settings to stderr. Return False if they prevent the start."""
    import django
    from django.core import checks

    try:
        django.setup()
    except SettingInvalid as error:
        print(error, file=sys.stderr)
        return False
    findings = checks.run_checks(tags=["trainyard"])
    for finding in findings:
        print(finding, file=sys.stderr)
    return not any(finding.is_serious() for finding in findings)


def close_state_files() -> None:
    """Remove other users' permissions from all state files, and from an SQLite database elsewhere."""
    from django.conf import settings

    from controlplane.config.state_files import close_below, close_database

    close_below(settings.STATE_DIR)
    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        close_database(str(database["NAME"]))


def ignore_wake_ups() -> None:
    """Send no wake-ups from this process: no loop runs yet, and a loop begins with a cycle."""
    from controlplane.loop.wake import listen

    listen(lambda: None)


def prepare_database() -> None:
    """Migrate the database and store what the settings declare: clusters at the first start, and the bootstrap token.
    Safe to repeat."""
    _migrate()
    _register_clusters()
    _warn_without_nodes()
    _register_bootstrap_token()


def _migrate() -> None:
    """Migrate if a migration is missing. That check takes 10 ms, while the command takes a second even if none is."""
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    from controlplane.supervisor.new_database import create_tables

    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()) and not create_tables(executor):
        call_command("migrate", interactive=False, verbosity=0, skip_checks=True)


def _register_clusters() -> None:
    """Register the clusters of TRAINYARD_CLUSTERS with their nodes if there is no cluster yet; otherwise only apply
    changed presets such as TRAINYARD_KUBERNETES to them."""
    from django.conf import settings
    from django.utils import timezone

    from controlplane.access import SYSTEM
    from controlplane.actions.clusters import register_cluster
    from controlplane.engines.registry import parse_clusters
    from controlplane.loop.engine_pool import engine_for
    from controlplane.loop.inventory import sync_nodes
    from controlplane.models import Cluster

    declared_clusters = parse_clusters(settings.CLUSTERS)
    if Cluster.objects.exists():
        for declared in declared_clusters:
            _apply_preset(declared.name, declared.engine)
        return
    for declared in declared_clusters:
        given: dict[str, Any] = settings.CLUSTER_PRESETS.get(declared.engine, {})
        cluster = register_cluster(
            declared.name,
            declared.engine,
            {**declared.settings, **given.get("settings", {})},
            actor=SYSTEM,
            scheduler=given.get("scheduler", "planner"),
            credentials=declared.credentials,
        )
        # The nodes of other clusters are discovered by the loop.
        if cluster.state == Cluster.ATTACHED:
            sync_nodes(cluster, engine_for(cluster), timezone.now())


def _apply_preset(name: str, engine: str) -> None:
    """Apply the server's preset for an engine, if it changed, to the cluster `name`. A refusal, for example because
    pods run on nodes to be renamed, is printed and changes nothing, because the start must continue."""
    from django.conf import settings

    from controlplane.access import SYSTEM
    from controlplane.actions.clusters import edit_cluster
    from controlplane.actions.errors import Conflict, Invalid
    from controlplane.engines.kinds import engine_kind
    from controlplane.models import Cluster

    cluster = Cluster.objects.filter(name=name, engine=engine, detached_at=None).first()
    preset: dict[str, Any] = settings.CLUSTER_PRESETS.get(engine, {})
    changed = {
        field: value for field, value in preset.items() if cluster and getattr(cluster, field) != value
    }
    if cluster is None or not changed:
        return
    try:
        edit_cluster(cluster, changed, actor=SYSTEM)
    except (Conflict, Invalid) as error:
        variable = engine_kind(engine).variable
        print(f"{variable} is not applied, {name} stays as it was: {error}", file=sys.stderr)


def _warn_without_nodes() -> None:
    """Print a warning if no node exists, because jobs would wait forever; for example with `local:nvml` on a machine
    without GPUs."""
    from django.conf import settings

    from controlplane.models import Cluster, Node

    is_checking = Cluster.objects.filter(state=Cluster.CHECKING, detached_at=None).exists()
    if not (is_checking or Node.objects.exists()):
        print(f"No node was found (TRAINYARD_CLUSTERS={settings.CLUSTERS}): jobs will wait.", file=sys.stderr)


def _register_bootstrap_token() -> None:
    from controlplane.actions.sign_in import register_bootstrap_token

    register_bootstrap_token()


def gather_static_files() -> None:
    """Collect static files into the state directory, if any of them changed since the last call."""
    from django.conf import settings
    from django.core.management import call_command

    stamp = Path(settings.STATIC_ROOT) / ".gathered"
    state = hashlib.sha256(repr(sorted(_static_files(settings.BASE_DIR))).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == state:
        return
    call_command("collectstatic", interactive=False, verbosity=0, clear=True, skip_checks=True)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(state)


def _static_files(checkout: Path) -> Iterator[tuple[str, int, int]]:
    for path in (checkout / "static").rglob("*"):
        if path.is_file():
            facts = path.stat()
            yield str(path.relative_to(checkout)), facts.st_size, facts.st_mtime_ns


def setup_path() -> str:
    """Return the path of a new one-time link that creates the first admin; "" if an admin exists. Earlier links become
    invalid."""
    from controlplane.actions.accounts import create_setup_link

    secret = create_setup_link()
    return f"/setup/{secret}" if secret else ""


if __name__ == "__main__":
    sys.exit(main())
