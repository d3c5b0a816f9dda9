"""Who may import whom: the table of the design, and a walk over every import of the product."""

import ast
import sys
from pathlib import Path

import pytest

from tests.house.sources import PRODUCT, imports_of, module_of, python_files, tree_of

# module prefix -> layer; the longest prefix wins. A module that has no place here fails the test: give it one.
LAYERS = {
    "manage": "root",
    "controlplane": "root",  # settings, urls, apps, checks, asgi: where the parts are put together
    "controlplane.management": "root",
    "controlplane.supervisor": "supervisor",
    "controlplane.supervisor.component": "root",
    "controlplane.supervisor.new_database": "root",
    "controlplane.supervisor.prepare": "root",
    "controlplane.supervisor.web": "root",
    "controlplane.http": "http",
    "controlplane.http.client_address": "pure",
    "controlplane.http.connections": "plain",
    "controlplane.config": "plain",
    "controlplane.http.departure": "plain",
    "controlplane.http.fair_queue": "plain",
    "controlplane.http.header_limits": "pure",
    "controlplane.http.password_routes": "pure",
    "controlplane.http.problem_details": "plain",
    "controlplane.logstore": "plain",
    "controlplane.http.throttle": "plain",
    "controlplane.http.unknown_tokens": "plain",
    "controlplane.scheduling": "pure",
    "controlplane.scheduling.replay": "plain",  # the command around the core: it reads the kept view
    "jobs.kinds": "pure",
    "jobs.fields": "pure",
    "jobs.lifecycle": "pure",
    "controlplane.live.changes": "pure",
    "controlplane.live.activity": "pure",
    "dashboards.charts": "figures",
    "dashboards.heatmap": "pure",
    "controlplane.clusters.settings": "pure",
    "controlplane.clusters.node_names": "pure",
    "controlplane.clusters.quantities": "pure",
    "controlplane.fields": "pure",
    "controlplane.http_client": "portable",
    "controlplane.notation": "pure",
    "controlplane.unsafe_text": "pure",
    "controlplane.api.json_schema": "pure",
    "controlplane.remote_errors": "pure",
    "controlplane.kubernetes_api": "cluster client",
    "controlplane.kubernetes_api.kubeconfig": "plain",
    "controlplane.kubernetes_api.names": "pure",
    "controlplane.kubernetes_api.errors": "plain",
    "controlplane.engines": "engines",
    "controlplane.engines.base": "seam",
    # A kind's description is read by every face; it names its engine by path and imports none.
    "controlplane.engines.kinds": "plain",
    "controlplane.engines.memory_kind": "plain",
    "controlplane.engines.node_settings": "pure",
    "controlplane.engines.kubernetes.settings": "pure",
    # Plain dicts of a cluster in and out: as pure as the scheduler, but they speak in the engines' plain data, and a
    # second set of the same dataclasses only for them would have to be kept equal by hand.
    "controlplane.engines.pod_env": "rendering",
    "controlplane.engines.mpi_hostfile": "rendering",
    "controlplane.engines.place_files": "plain",
    "controlplane.engines.variables": "plain",
    "controlplane.engines.kubernetes.code_fetch": "plain",  # its text runs in pods
    "controlplane.engines.kubernetes.pod_program": "plain",  # its text comes before theirs
    "controlplane.engines.kubernetes.code_delivery": "rendering",
    "controlplane.engines.kubernetes.cache_fill": "plain",  # its text runs in a pod
    "controlplane.engines.kubernetes.member_agent": "plain",  # the same
    "controlplane.engines.kubernetes.elastic": "rendering",
    "controlplane.engines.kubernetes.pod_scripts": "rendering",
    "controlplane.engines.kubernetes.data_pod_objects": "rendering",
    "controlplane.engines.kubernetes.names": "rendering",
    "controlplane.engines.kubernetes.sanitize": "rendering",
    "controlplane.engines.kubernetes.dcgm": "rendering",
    "controlplane.engines.kubernetes.config": "rendering",
    "controlplane.engines.kubernetes.manifests": "rendering",
    "controlplane.engines.kubernetes.mpi": "rendering",
    "controlplane.engines.kubernetes.mounts": "rendering",
    "controlplane.engines.kubernetes.tenancy": "rendering",
    "controlplane.engines.kubernetes.reports": "rendering",
    "controlplane.engines.kubernetes.inventory": "rendering",
    "controlplane.engines.kubernetes.api_errors": "rendering",
    "controlplane.engines.kubernetes.kai": "rendering",
    "controlplane.models": "models",
    "controlplane.migrations": "models",
    "jobs.models": "models",
    "jobs.migrations": "models",
    "jobs.queries": "queries",
    "jobs.change_list": "queries",
    "jobs.row_cache": "queries",
    "jobs.outlook": "queries",
    "jobs.estimate_record": "queries",
    "jobs.run_times": "queries",
    "jobs.planning": "actions",
    "jobs.what_if": "queries",
    "jobs.recorded_week": "queries",
    "controlplane.app_holdings": "queries",
    "controlplane.queries": "queries",
    "controlplane.access": "access",
    "controlplane.clusters.credentials": "credentials",
    "controlplane.actions": "actions",
    "jobs.actions": "actions",
    "jobs.admission": "actions",
    "jobs.allocation": "actions",  # part of every transaction that takes or releases GPUs
    "jobs.device_shares": "queries",
    "jobs.images": "queries",
    "jobs.log_stream": "live",
    "jobs.log_tail": "live",
    "jobs.node_actions": "actions",
    "jobs.node_pods": "queries",
    "jobs.overview": "queries",
    "jobs.overview_state": "live",
    "jobs.telemetry": "telemetry",
    "jobs.management": "root",
    "datasets.management": "root",
    "jobs.project_status": "queries",
    "jobs.release": "actions",
    "jobs.scaling": "actions",
    "jobs.log_ranks": "queries",
    "jobs.transitions": "actions",
    "jobs.limits": "queries",
    "jobs.room": "queries",
    "controlplane.commands": "loop",
    "controlplane.commands.errors": "plain",
    "controlplane.registration": "registration",
    "jobs.command_kinds": "pure",
    "controlplane.loop": "loop",
    "controlplane.loop.engine_pool": "engine_pool",
    "controlplane.loop.observe": "queries",  # rows -> view, for the loop and for what-if questions
    "controlplane.loop.node_views": "queries",  # its nodes
    "controlplane.loop.job_views": "queries",  # its jobs
    "controlplane.loop.constructors": "queries",
    "controlplane.loop.placements": "queries",  # its pods
    "controlplane.loop.host": "root",  # the process: Celery's application and the loop
    "controlplane.loop.wake": "wake",
    "controlplane.loop.tasks": "wake",
    "controlplane.celery_app": "wake",  # what publishes a wake-up
    "controlplane.redis_transport": "wake",  # what carries it
    "controlplane.simulation": "plain",
    "controlplane.simulation.routes": "pure",
    "controlplane.telemetry": "telemetry",
    "controlplane.telemetry.metrics": "plain",
    "controlplane.telemetry.queries": "queries",
    "controlplane.telemetry.usage": "queries",
    "controlplane.live": "live",
    "jobs.gateway": "gateway",
    "controlplane.api": "api",
    "jobs.api": "api",
    "dashboards": "pages",
    "controlplane.cli": "cli",
    "jobs": "root",
    "datasets": "root",
    "datasets.code_manifest": "pure",
    "datasets.manifests": "pure",
    "datasets.aging": "pure",
    "datasets.locality": "pure",
    "datasets.selection": "pure",
    "datasets.cache_shares": "pure",
    "datasets.previews": "pure",
    "datasets.templatetags": "pages",
    "datasets.access": "access",
    "datasets.ingest": "portable",
    "datasets.code_archive": "plain",
    "datasets.git_source": "plain",  # reads a repository into the code store's terms; knows neither models nor settings
    "datasets.code_store": "plain",  # as the log store: actions and api read and write it, engines read it
    "datasets.models": "models",
    "datasets.migrations": "models",
    "datasets.queries": "queries",
    "datasets.actions": "actions",
    "datasets.storage.csi": "engines",
    "datasets.volume_storage": "loop",
    "datasets.cache_volumes": "loop",
    "datasets.claim_watching": "loop",
    "datasets.storage": "plain",  # as the log store: uploads are written into the lake by api, read by the engines
    "datasets.api": "api",
    "datasets.loop_steps": "loop",
    "datasets.long_work": "loop",
    "datasets.volume_topics": "live",
    "datasets.outputs": "loop",
    "datasets.pod_quiesce": "loop",
    "datasets.lineage": "pure",
    "datasets.lineage_layout": "pure",
    "workloads": "workloads",
}
# what a module of an app is, where the table above does not say otherwise: a new app needs no line in it
MODULES_OF_APPS = {
    "access": "access",
    "actions": "actions",
    "api": "api",
    "charts": "figures",
    "command_handlers": "loop",
    "event_streams": "live",
    "holdings": "actions",
    "live_topics": "live",
    "loop_steps": "loop",
    "metrics": "http",
    "migrations": "models",
    "models": "models",
    "navigation": "pages",
    "pages": "pages",
    "queries": "queries",
}
BELOW_ACTIONS = {"plain", "pure", "portable", "registration", "models", "queries", "access", "wake"}
# layer -> layers of ours that it may import, besides itself
MAY_IMPORT = {
    "plain": {"pure", "portable"},
    "pure": set(),
    "figures": set(),  # pure, and the one place that builds Plotly figures
    "seam": {"plain", "pure"},
    "cluster client": {"plain", "pure"},
    "rendering": {"plain", "pure", "seam"},
    "engines": {"plain", "pure", "seam", "rendering", "cluster client"},
    "models": {"plain", "pure"},
    "queries": {"plain", "pure", "registration", "models", "seam"},
    "access": {"plain", "pure", "models", "queries"},
    "credentials": {
        "plain",
        "pure",
        "models",
    },  # opened where an engine is, sealed by the verbs; no face has them
    "engine_pool": {"plain", "pure", "models", "credentials", "seam", "engines"},  # where engines are opened
    "wake": {"plain"},
    "registration": set(),  # finds modules by name, and imports none of ours itself
    "http": {"plain", "pure", "registration", "models", "queries", "live"},
    "actions": {*BELOW_ACTIONS, "credentials"},
    "telemetry": {"plain", "pure", "models", "queries", "seam", "engines"},
    "loop": {*BELOW_ACTIONS, "engine_pool", "credentials", "actions", "seam", "engines", "telemetry"},
    "live": {"plain", "pure", "registration", "models", "queries", "access"},
    "gateway": {"plain", "pure", "models", "queries", "access", "engine_pool", "actions", "seam", "live"},
    "api": {*BELOW_ACTIONS, "actions", "live"},
    "pages": {*BELOW_ACTIONS, "figures", "actions", "live"},
    "portable": {"pure"},  # standard library alone: `yard` reads directories with the same code as the server
    "cli": {"portable", "pure"},
    "supervisor": {"plain"},
    "workloads": set(),
}
WITHOUT_DJANGO = {
    "plain",
    "pure",
    "figures",
    "seam",
    "cluster client",
    "rendering",
    "engines",
    "portable",
    "cli",
    "supervisor",
    "workloads",
}
DJANGO = {"django", "rest_framework", "drf_spectacular", "channels", "celery", "kombu"}
# what makes a pure function impure
IMPURE = {
    "asyncio", "ftplib", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select",
    "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid",
}  # fmt: skip
PURE_LAYERS = {"pure", "figures", "rendering"}
CLOCKS = {"now", "utcnow", "today"}


def layer_of(module: str) -> str | None:
    if module.startswith("controlplane.engines.") and module.endswith(".kind"):
        return "plain"
    parts = module.split(".")
    prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    found = next(((prefix, LAYERS[prefix]) for prefix in prefixes if prefix in LAYERS), None)
    if found is not None and found[0] == parts[0] and len(parts) > 1:
        return MODULES_OF_APPS.get(parts[1], found[1])
    return found[1] if found is not None else None


def is_ours(module: str) -> bool:
    return module.split(".")[0] in (*PRODUCT, "tests", "bench", "tools")


def test_a_module_imports_only_what_its_layer_may() -> None:
    layers = {path: layer_of(module_of(path)) for path in python_files(PRODUCT)}
    broken = [
        f"{module_of(path)}:{line} ({layer}) imports {imported}"
        for path, layer in layers.items()
        if layer is not None
        for imported, line in imports_of(tree_of(path))
        if not may_import(module_of(path), layer, imported)
    ]
    assert not broken, "\n".join(broken)


def may_import(module: str, layer: str, imported: str) -> bool:
    top = imported.split(".")[0]
    if not is_ours(imported):
        return not (
            (layer in WITHOUT_DJANGO and top in DJANGO)
            or (layer in PURE_LAYERS and not is_pure_library(top, layer))
        )
    if top in {"tests", "bench", "tools"}:
        return False
    if layer in {"root"}:
        return True
    if layer == "workloads":
        return imported.startswith("workloads.common") or package_of(imported) == package_of(module)
    target = layer_of(imported)
    return target == layer or target in MAY_IMPORT[layer]


def is_pure_library(top: str, layer: str) -> bool:
    if top == "plotly":
        return layer == "figures"
    return top == "numpy" or (top in sys.stdlib_module_names and top not in IMPURE)


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_a_pure_module_reads_no_clock_and_opens_no_file() -> None:
    impure = [
        f"{module_of(path)}:{node.lineno} {ast.unparse(node.func)}()"
        for path in python_files(PRODUCT)
        if layer_of(module_of(path)) in PURE_LAYERS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and is_impure_call(node.func)
    ]
    assert not impure, "\n".join(impure)


def is_impure_call(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute):
        return function.attr in CLOCKS and isinstance(function.value, ast.Name | ast.Attribute)
    return isinstance(function, ast.Name) and function.id in {"open", "print", "input", "exec", "eval"}


def test_only_the_loop_and_what_is_listed_import_jobs() -> None:
    """The control plane is below its apps: what it needs of jobs moves into `jobs`, and leaves this list."""
    importing = {
        module_of(path)
        for path in python_files(("controlplane",))
        if any(imported.split(".")[0] == "jobs" for imported, _ in imports_of(tree_of(path)))
    }
    # `yard` is a client, and reads only the fields that it sends.
    above = ("controlplane.loop.", "controlplane.cli.commands.submit")
    outside = {module for module in importing if not module.startswith(above)}
    assert outside == set()


def test_every_module_has_a_place_in_the_table() -> None:
    homeless = [
        module_of(path)
        for path in python_files(PRODUCT)
        if layer_of(module_of(path)) == "root" and not is_known_root(path)
    ]
    assert not homeless, f"say in LAYERS what these may import: {', '.join(homeless)}"


APPS_OF_COMMANDS = ("controlplane", "jobs", "datasets")


def is_known_root(path: Path) -> bool:
    """The composition roots are few and named: files right below a package, and commands."""
    module = module_of(path)
    depth = module.count(".")
    return depth <= 1 or module.startswith(
        (
            "controlplane.supervisor",
            "controlplane.loop.host",
            *(f"{app}.management" for app in APPS_OF_COMMANDS),
        )
    )


@pytest.mark.parametrize(
    ("module", "layer", "imported", "allowed"),
    [
        ("controlplane.scheduling.fit", "pure", "django.db", False),
        ("controlplane.scheduling.fit", "pure", "random", False),
        ("controlplane.scheduling.fit", "pure", "dataclasses", True),
        ("controlplane.engines.memory", "engines", "controlplane.models.clusters", False),
        ("controlplane.engines.kubernetes.manifests", "rendering", "controlplane.engines.base", True),
        (
            "controlplane.engines.kubernetes.manifests",
            "rendering",
            "controlplane.kubernetes_api.client",
            False,
        ),
        ("controlplane.engines.kubernetes.manifests", "rendering", "time", False),
        ("controlplane.kubernetes_api.client", "cluster client", "controlplane.engines.base", False),
        ("controlplane.api.jobs", "api", "controlplane.engines.base", False),
        ("controlplane.api.jobs", "api", "controlplane.loop.cycle", False),
        ("controlplane.api.views.clusters", "api", "controlplane.clusters.credentials", False),
        ("controlplane.actions.nodes", "actions", "controlplane.loop.wake", True),
        ("controlplane.actions.nodes", "actions", "controlplane.loop.cycle", False),
        ("controlplane.models.events", "models", "controlplane.actions.audit", False),
        ("controlplane.cli.commands.jobs", "cli", "controlplane.access", False),
        ("workloads.quickstart.train", "workloads", "workloads.common.progress", True),
        ("workloads.quickstart.train", "workloads", "workloads.elastic.train", False),
        ("controlplane.loop.execute", "loop", "dashboards.reads", False),
        ("controlplane.loop.execute", "loop", "tests.builders", False),
    ],
)
def test_the_rules_bite(module: str, layer: str, imported: str, allowed: bool) -> None:
    assert layer_of(module) == layer
    assert may_import(module, layer, imported) is allowed
