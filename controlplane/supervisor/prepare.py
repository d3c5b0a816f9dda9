"""Before the servers start: settings checked, database migrated, static files gathered, a link for the first admin.

Prints one JSON object for the supervisor on stdout; what a person must mend goes to stderr.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from controlplane.config.environment import SettingInvalid


def main() -> int:
    """Exit code 0, or 1 with what to mend on stderr."""
    if not check_settings():
        return 1
    close_state_files()
    prepare_database()
    gather_static_files()
    print(json.dumps({"setup_path": setup_path()}))
    return 0


def check_settings() -> bool:
    """Set Django up and say on stderr what must be mended; False when it must be before anything can start."""
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
    """Take other users' rights from everything that the instance keeps, the database included wherever it is."""
    from django.conf import settings

    from controlplane.config.state_files import close_below, close_database

    close_below(settings.STATE_DIR)
    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        close_database(str(database["NAME"]))


def prepare_database() -> None:
    """Migrate, and write what the settings declare: clusters on the first start, the bootstrap token."""
    _migrate()
    _register_clusters()
    _warn_without_nodes()
    _register_bootstrap_token()


def _migrate() -> None:
    """Migrate when something is to be done: the plan costs 10 ms, the command a second."""
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", interactive=False, verbosity=0, skip_checks=True)


def _register_clusters() -> None:
    """On the first start, register what TRAINYARD_CLUSTERS declares, with its nodes; later only take over what
    TRAINYARD_KUBERNETES says."""
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
            _edit_kubernetes(declared.name, declared.engine)
        return
    for declared in declared_clusters:
        given: dict[str, Any] = settings.KUBERNETES if declared.engine == "kubernetes" else {}
        cluster = register_cluster(
            declared.name,
            declared.engine,
            {**declared.settings, **given.get("settings", {})},
            actor=SYSTEM,
            scheduler=given.get("scheduler", "planner"),
            credentials=declared.credentials,
        )
        if cluster.state == Cluster.ATTACHED:  # others are looked at by the loop first
            sync_nodes(cluster, engine_for(cluster), timezone.now())


def _edit_kubernetes(name: str, engine: str) -> None:
    """Have a changed TRAINYARD_KUBERNETES take effect on a cluster that is there already. What is refused, such as
    other names for nodes under pods, is said and left as it was: all else must start."""
    from django.conf import settings

    from controlplane.access import SYSTEM
    from controlplane.actions.clusters import edit_cluster
    from controlplane.actions.errors import Conflict, Invalid
    from controlplane.models import Cluster

    cluster = Cluster.objects.filter(name=name, engine=engine, detached_at=None).first()
    if engine != "kubernetes" or cluster is None:
        return
    changed = {
        field: value for field, value in settings.KUBERNETES.items() if getattr(cluster, field) != value
    }
    if not changed:
        return
    try:
        edit_cluster(cluster, changed, actor=SYSTEM)
    except (Conflict, Invalid) as error:
        print(f"TRAINYARD_KUBERNETES is not taken over, {name} stays as it was: {error}", file=sys.stderr)


def _warn_without_nodes() -> None:
    """Say so when jobs would wait for ever, such as `local:nvml` on a machine without GPUs."""
    from django.conf import settings

    from controlplane.models import Cluster, Node

    is_checking = Cluster.objects.filter(state=Cluster.CHECKING, detached_at=None).exists()
    if not (is_checking or Node.objects.exists()):
        print(f"No node was found (TRAINYARD_CLUSTERS={settings.CLUSTERS}): jobs will wait.", file=sys.stderr)


def _register_bootstrap_token() -> None:
    """Let TRAINYARD_BOOTSTRAP_TOKEN in everywhere, and a former one nowhere."""
    from controlplane.actions.sign_in import register_bootstrap_token

    register_bootstrap_token()


def gather_static_files() -> None:
    """Collect into the state directory what whitenoise serves, when a file has changed."""
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
    """The path of the one-time link that makes the first admin; empty once there is one."""
    from controlplane.actions.accounts import create_setup_link

    secret = create_setup_link()
    return f"/setup/{secret}" if secret else ""


if __name__ == "__main__":
    sys.exit(main())
