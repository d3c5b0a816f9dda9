"""What each route answers to whom: one line per route and verb, in a module with the name of the app that owns it. A
new app adds its module; a route, verb or topic without a line fails the matrix.
"""

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
