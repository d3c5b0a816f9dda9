"""Find what installed apps declare. An app declares by having a module of an agreed name; no list names the app twice.

| module of an app | declares | read by |
|---|---|---|
| `command_handlers` | handlers, by `@register` | `controlplane.commands.registry` |
| `loop_steps` | `STEPS`, periodic work of the loop | `controlplane.loop.steps` |
| `live_topics` | `TOPICS`; in one app `OVERVIEW` and `LOG_TAIL` | `controlplane.live.registry` |
| `event_streams` | `STREAMS`, endless responses | `controlplane.live.streams` |
| `holdings` | `HOLDINGS`, what it keeps in projects and on clusters | `controlplane.app_holdings` |
| `metrics` | `GAUGES` of /metrics | `controlplane.http.metrics` |
| `api.refusals` | `TRANSLATIONS`, exceptions of its actions as problems | `controlplane.api.errors` |
| `api.urls` | `urlpatterns` below /api/v1/ | `controlplane.api.urls` |
| `api.schemas` | `COMPONENTS` of the OpenAPI document | `controlplane.api.openapi` |
| `pages.urls` | `urlpatterns` of its pages | `dashboards.urls` |
| `navigation` | `ENTRIES` of the navigation | `dashboards.navigation` |
"""

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from django.apps import apps


def app_modules(name: str) -> Iterator[ModuleType]:
    """Import and yield the module `name`, such as "api.urls", of every installed app that has one, in the order of
    INSTALLED_APPS. Exceptions raised by such a module propagate."""
    for config in apps.get_app_configs():
        if config.name.startswith("django.") or not _exists(config.name, name):
            continue
        yield import_module(f"{config.name}.{name}")


def _exists(package: str, name: str) -> bool:
    """Return whether the module `package.name` can be found. Imports its parent packages, but not the module itself."""
    path = package
    for part in name.split("."):
        path = f"{path}.{part}"
        if find_spec(path) is None:
            return False
    return True
