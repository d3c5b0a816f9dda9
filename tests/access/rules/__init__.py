"""The expected statuses of each route: one line per route and verb, in the module named as the app that owns the
route. A new app adds its module. The matrix fails for a route, verb or topic without a line."""

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from tests.access.roles import Rule

OWNERS: dict[str, ModuleType] = {
    found.name: import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)
}
REST: dict[str, dict[str, Rule]] = {}
PAGES: dict[str, dict[str, Rule]] = {}
TOPICS: dict[str, Rule] = {}
for _owner in OWNERS.values():
    REST |= getattr(_owner, "REST", {})
    PAGES |= getattr(_owner, "PAGES", {})
    TOPICS |= getattr(_owner, "TOPICS", {})
