"""All pages, and an instance with content for them: jobs in every state, borrowed GPUs, a cordoned node, an
unreachable cluster.

`test_every_route_is_listed` fails for a route that is in neither table, so the tests of all pages include new
ones."""

import re
from collections.abc import Iterator
from typing import Any

from django.urls import URLPattern, URLResolver, get_resolver

from dashboards.pages.jobs import TABS
from tests.browser.conftest import Yard
from tests.browser.datasets import fill_datasets
from tests.waiting import wait_until

LONG = "a-rather-long-name-for-a-job-of-the-kind-that-people-do-choose"
AWAY = "prod"
KUBECONFIG = """apiVersion: v1
kind: Config
current-context: main
clusters: [{name: main, cluster: {server: "https://127.0.0.1:9"}}]
users: [{name: main, user: {token: nothing}}]
contexts: [{name: main, context: {cluster: main, user: main}}]
"""
LINE = '{\\"trainyard\\": 1, \\"step\\": $s, \\"total_steps\\": 9, \\"loss\\": 0.$s}'
LINES = f'for s in 1 2 3 4 5; do echo "{LINE}"; done'
JOBS: dict[str, dict[str, Any]] = {
    "succeeded": {"script": f"{LINES}; echo done"},
    "failed": {"script": "echo no >&2; exit 3", "retries": 1},
    "timed_out": {"max_runtime_seconds": 1},
    "stopped": {"gpus": 0},
    "suspended": {"gpus": 0, "labels": {"scaling-report": "lanes"}},
    "running": {"script": f"{LINES}; sleep 600", "gpus": 2, "workers": 3, "ports": [{"port": 8888}]},
    "interactive": {"kind": "interactive", "gpus": 0.5, "project": "team-b"},
    "elastic": {"kind": "elastic", "gpus": 0, "workers": 1, "min_workers": 1, "max_workers": 2},
    "queued": {"gpus": 8, "workers": 2, "name": LONG},
    # ends after its grace, so that it is seen on the way
    "stopping": {"script": "trap '' TERM; while :; do sleep 1; done", "gpus": 0},
}

JOBS_BY_KIND = ("interactive", "elastic")  # running ones

# Name of the route: the addresses under which its page is looked at. {name} is the id of the job of JOBS.
PAGES: dict[str, tuple[str, ...]] = {
    "overview": ("/",),
    "jobs": ("/jobs", "/jobs?state=queued", "/jobs?q=nothing-has-this-name"),
    "jobs-selected": ("/jobs/selected?verb=stop&row={running}&row={stopped}",),
    "job-new": ("/new/job", "/new/job?clone={running}"),
    "job": tuple(f"/jobs/{{{state}}}" for state in JOBS if state != "stopping"),
    "job-tab": (
        "/jobs/{elastic}/workers",
        *(f"/jobs/{{running}}/{tab}" for tab in TABS if tab not in ("overview", "terminal", "workers")),
    ),
    "job-scale": ("/jobs/{elastic}/scale?workers=2", "/jobs/{elastic}/scale?workers=no-number"),
    "job-terminal": ("/jobs/{running}/terminal",),
    "projects": ("/projects",),
    "project-new": ("/new/project",),
    "project": ("/projects/team-a",),
    "project-edit": ("/projects/team-a/edit",),
    "project-delete": ("/projects/team-a/delete", "/projects/empty/delete"),
    "nodes": ("/nodes",),
    "node": ("/nodes/dgx1-1", "/nodes/dgx1-2"),
    "clusters": ("/clusters",),
    "cluster-new": ("/new/cluster",),
    "cluster": ("/clusters/local", f"/clusters/{AWAY}"),
    "cluster-edit": (f"/clusters/{AWAY}/edit",),
    "dataset-list": ("/datasets",),
    "dataset-page": ("/datasets/{dataset}", "/datasets/{no versions}"),
    "dataset-files": (
        "/datasets/{dataset}/files?file=readme.txt",
        "/datasets/{dataset}/files?path=images&file=images/scan.png",
    ),
    "dataset-diff": ("/datasets/{dataset}/diff",),
    "dataset-new": ("/new/dataset",),
    "dataset-edit": ("/datasets/{dataset}/edit",),
    "dataset-upload": ("/datasets/{dataset}/upload",),
    "subset-new": ("/datasets/{dataset}/subset",),
    "subset-delete": ("/datasets/{dataset}/subset/delete?name=1/pictures",),
    "dataset-delete": ("/datasets/{dataset}/delete",),
    "cache-locations": ("/cache-locations",),
    "cache-location-new": ("/new/cache-location",),
    "cache-location-edit": ("/cache-locations/fast/edit",),
    "cache-location-delete": ("/cache-locations/fast/delete",),
    "cache-clear": ("/caches/{cache}/clear",),
    "users": ("/users",),
    "audit": ("/audit", "/audit?q=nothing-has-this-name"),
    "user": ("/users/ana",),
    "user-verb": ("/users/ana/do/lock",),
    "member-remove": ("/projects/team-a/members/remove?user=vera",),
    "tokens": ("/tokens",),
    "analytics": ("/analytics",),
    "volumes": ("/volumes", "/volumes?q=nothing-has-this-name"),
    "volume-new": ("/new/volume",),
    "volume": ("/volumes/{volume}",),
    "volume-delete": ("/volumes/{volume}/delete",),
    "snapshot-restore": ("/snapshots/{snapshot}/restore",),
    "snapshot-delete": ("/snapshots/{snapshot}/delete",),
    "artifact": ("/artifacts/{artifact}",),
    "artifact-delete": ("/artifacts/{artifact}/delete",),
    "lineage": ("/lineage/artifact/{artifact}", "/lineage/snapshot/{snapshot}"),
    "scaling-reports": ("/scaling-reports", "/scaling-reports?project=team-a&name=lanes"),
}
SIGNED_OUT = "signed out"
WHEN_SIGNED_OUT = {"setup": "/setup/no-such-link", "login": "/login"}
NOT_PAGES = frozenset(
    {
        *("metrics", "logout", "node-card", "volume-file", "volume-verb"),
        *("job-outlook", "job-plan", "project-what-if"),
        *(
            "job-verb",
            "member-set",
            "node-verb",
            "dataset-cache",
            "dataset-register",
            "dataset-tag",
            "dataset-untag",
            "cache-verb",
            "cluster-verb",
            "token-revoke",
        ),
    }
)
MISSING = "/no/such/page"
# Who looks at which page: the admin at all of them; a viewer and a user without a project at what differs for them.
ADDRESSES = [
    *(("root", address) for addresses in PAGES.values() for address in addresses),
    ("root", MISSING),
    *(
        ("vera", address)
        for address in ("/jobs/{running}", "/projects/team-a", "/datasets/{dataset}", "/volumes/{volume}")
    ),
    *(("chi", address) for address in ("/", "/jobs", "/projects", "/tokens")),
    *((SIGNED_OUT, address) for address in WHEN_SIGNED_OUT.values()),
]
# Where every look is taken: one page of each template. The others differ from it in contents, and get fewer looks.
IN_EVERY_LOOK = frozenset(
    {
        *(("root", addresses[0]) for addresses in PAGES.values()),
        *(("root", address) for address in (*PAGES["job-tab"], "/jobs/{running}", MISSING)),
        *((SIGNED_OUT, address) for address in WHEN_SIGNED_OUT.values()),
    }
)
# What opens on a page, and what opens it.
OPENERS = (
    *(("/tokens", opener) for opener in (".picker", ".avatar", "[data-palette]")),
    *(("/jobs/{running}", f"[data-dialog={verb}-dialog]") for verb in ("stop", "suspend")),
    ("/jobs/{failed}", "[data-dialog=delete-dialog]"),
    *(("/nodes/dgx1-1", f"[data-dialog={verb}-dialog]") for verb in ("drain", "interrupt")),
    (f"/clusters/{AWAY}", "[data-dialog=detach-dialog]"),
)


def routes() -> Iterator[URLPattern]:
    """Return each route that may answer with a page: outside the REST API, and without the file extension json,
    csv or txt."""
    found = _below(get_resolver("controlplane.urls").url_patterns)
    return (route for route in found if not re.search(r"\.(json|csv|txt)\$?$", str(route.pattern)))


def fill(yard: Yard) -> dict[str, str]:
    """Submit JOBS and bring each into its state; return the ids by state."""
    yard.call("POST", "/projects", {"name": "empty", "gpu_quota": 1})
    _attach_a_cluster_that_is_away(yard)
    # the queued one asks for all GPUs of both nodes: it waits for as long as any other runs
    jobs = {state: _submit(yard, state) for state in JOBS}
    for state in ("suspended", "stopped", "stopping"):
        yard.wait_for(jobs[state], "running")
        yard.call("POST", f"/jobs/{jobs[state]}/{'suspend' if state == 'suspended' else 'stop'}")
    for state, job in jobs.items():
        yard.wait_for(job, "running" if state in JOBS_BY_KIND else state, "stopped")
    yard.call("POST", "/nodes/dgx1-2/cordon")
    return jobs | fill_datasets(yard) | _volume_with_a_snapshot(yard)


def _volume_with_a_snapshot(yard: Yard) -> dict[str, str]:
    """Create a volume with a snapshot and an artifact, which a finished job wrote; return the ids by kind."""
    yard.call("POST", "/volumes", {"project": "team-a", "name": LONG, "size": "1Gi"})
    volume = yard.call("POST", "/volumes", {"project": "team-a", "name": "volume", "size": "1Gi"})["id"]
    mount = {"volume": "volume", "mount_path": "/mnt"}
    script = f"mkdir /mnt/sub out; echo 1 > /mnt/file; echo 1 > out/weights; {LINES}; sleep 1"
    keeps = {"snapshot_on": ["success"], "artifacts": [{"path": "out", "name": "model"}]}
    job = yard.submit("writer", script, gpus=0, volumes=[mount], **keeps)
    yard.wait_for(job, "succeeded")
    found: list[Any] = []

    def is_ready() -> bool:
        taken = yard.call("GET", "/snapshots?volume=volume&state=ready")["results"]
        kept = yard.call("GET", f"/jobs/{job}/artifacts?state=ready")["results"]
        found[:] = [*taken[:1], *kept]
        return len(found) == len(("snapshot", "artifact"))

    wait_until(is_ready, 60, "the snapshot and the artifact at the job's end")
    snapshot, artifact = found
    return {"volume": volume, "snapshot": snapshot["id"], "artifact": artifact["id"]}


def _submit(yard: Yard, state: str) -> str:
    fields = {"name": f"job-{state.replace('_', '-')}", "script": "sleep 600"} | JOBS[state]
    return yard.submit(fields.pop("name"), fields.pop("script"), **fields)


def _attach_a_cluster_that_is_away(yard: Yard) -> None:
    body = {"name": AWAY, "engine": "kubernetes", "kubeconfig": KUBECONFIG}
    yard.call("POST", "/clusters", body)
    path = f"/clusters/{AWAY}"
    wait_until(lambda: not yard.call("GET", path)["status"]["is_checking"], 60, "the look at the cluster")


def _below(patterns: list[URLPattern | URLResolver]) -> Iterator[URLPattern]:
    for pattern in patterns:
        if isinstance(pattern, URLPattern):
            yield pattern
        elif str(pattern.pattern) != "api/v1/":
            yield from _below(pattern.url_patterns)
