"""A new app declares everything itself: no list but INSTALLED_APPS names it."""

import json
import os
import subprocess
import sys

from tests.servers import CHECKOUT
from tests.waiting import patience

SCRIPT = """
import json, django
from django.conf import settings
settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.newcomer"]
django.setup()
from django.urls import reverse
from controlplane.api.openapi import declared_components
from controlplane.commands.registry import handler_for, task_queues
from controlplane.live.topics import kinds, parse_topic, project_of
from controlplane.loop.steps import declared_steps
from dashboards.pages.navigation import declared_entries
print(json.dumps({
    "route": reverse("api:newcomer-volumes"),
    "page": reverse("newcomer-page"),
    "navigation": [entry.name for entry in declared_entries()],
    "component": "NewcomerVolume" in declared_components(),
    "topics": kinds(),
    "project of topic": project_of(parse_topic("newcomer:v1")),
    "steps": [step.name for step in declared_steps()],
    "queues": task_queues(),
    "handler": type(handler_for("newcomer.fill")).__name__,
}))
"""


def test_a_new_app_is_found_by_what_it_declares() -> None:
    told = {"DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(CHECKOUT)}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=CHECKOUT,
        env=os.environ | told,
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["route"] == "/api/v1/newcomer-volumes"
    assert found["page"] == "/newcomer/volumes"
    order = found["navigation"]
    assert order.index("nodes") < order.index("newcomer-page") < order.index("analytics")
    assert found["component"] is True
    assert {"overview", "project", "job", "newcomer"} <= set(found["topics"])
    assert found["project of topic"] == 7
    assert {"rollup", "newcomer-aging"} <= set(found["steps"])
    assert {"clusters", "newcomer"} <= set(found["queues"])
    assert found["handler"] == "FillVolume"
