"""What each kind of engine declares before one is opened: settings, credentials, schedulers, checks.

REST, pages, actions and the loop use these declarations and never compare a kind's name. A kind is a module
with a constant `KIND`, listed in MODULES. Imports the standard library only, so that web processes load no
engine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from controlplane.clusters.settings import Knob
from controlplane.fields import Reader

MODULES = (
    "controlplane.engines.local.kind",
    "controlplane.engines.memory_kind",
    "controlplane.engines.kubernetes.kind",
)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler that clusters of a kind can use. `label`: its name for users; `is_delegated`: the cluster's own
    scheduler places the pods, not our plan."""

    name: str
    label: str
    is_delegated: bool = False


PLANNER = Scheduler("planner", "Trainyard")


@dataclass(frozen=True, slots=True)
class Credential:
    """One field of a cluster's credentials: its reader, its JSON schema, and how the form asks for it.

    `widget`: "way" (one of several exclusive ways to authenticate), "file" (a text, uploaded or pasted), "text" or
    "switch". `help_edit` replaces `help` if the cluster has credentials already. `suggestions`: the id of the
    <datalist> that the form's script fills.
    """

    read: Reader
    schema: Mapping[str, Any]
    widget: str
    label: str
    help: str = ""
    help_edit: str = ""
    suggestions: str = ""


@dataclass(frozen=True, slots=True)
class ClusterForm:
    """The form that attaches a cluster of a kind. `default_way`: the label of the choice that uses the form's own
    fields; `script`: a module below static/; `covers`: sentences on what the checks examine; `example`: the `yard`
    command for the same."""

    default_way: str
    script: str
    covers: tuple[str, ...]
    example: str


def accept_credentials(given: Mapping[str, Any], is_new: bool, may_run_programs: bool) -> None:
    """Accept any credentials, as `EngineKind.check_credentials` does by default."""


@dataclass(frozen=True, slots=True)
class EngineKind:
    """What the rest of the product needs to know of a kind of engine before it opens one.

    `opens` and `checks` are "module:function": the first is called with settings and the state directory and returns
    the engine, the second with the settings and returns the preflight's checks. Clusters of a kind with `checks` are
    checked before use. `variable`: the server setting that holds scheduler and settings of the cluster registered at
    the first start.

    `read_settings` returns the settings to store; its argument is None if no settings were given. `read_entry`
    returns (settings, credentials) for the text after `NAME:` in TRAINYARD_CLUSTERS, or raises ValueError.
    `check_credentials(given, is_new, may_run_programs)` refuses credentials that cannot be stored. The first and the
    last raise SettingsInvalid, with pointers to the fields.
    """

    name: str
    opens: str
    read_settings: Callable[[Mapping[str, Any] | None], dict[str, Any]]
    read_entry: Callable[[str], tuple[dict[str, Any], dict[str, Any]]]
    checks: str = ""
    schedulers: tuple[Scheduler, ...] = (PLANNER,)
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    credentials: Mapping[str, Credential] = field(default_factory=dict)
    check_credentials: Callable[[Mapping[str, Any], bool, bool], None] = accept_credentials
    variable: str = ""
    form: ClusterForm | None = None
    runs_containers: bool = False
    # True if the engine reads the code store; otherwise its pods download code from the control plane.
    places_code: bool = False
    downloads_code: bool = False
    # True if its nodes can mount the directories of the storage classes.
    mounts_volumes: bool = False
    # True if the working directories of its pods are below the state directory
    # (controlplane.config.work_directories).
    keeps_outputs: bool = False
    # True if its engine copies output from working directories (datasets.outputs.OutputEngine).
    copies_outputs: bool = False
    # True if its volumes are claims in the cluster's own storage classes (datasets.volume_storage.ClaimEngine).
    claims_volumes: bool = False
    # False if its clusters have no objects of projects, so that Engine.sync_projects does nothing.
    keeps_projects: bool = True
    has_namespaces: bool = False
    rename_hint: str = "Give the nodes in its settings other names."

    @property
    def has_checks(self) -> bool:
        """Return whether clusters of this kind have a preflight."""
        return bool(self.checks)

    def scheduler(self, name: str) -> Scheduler | None:
        """Return the scheduler of this name, None if clusters of this kind cannot use it."""
        return next((one for one in self.schedulers if one.name == name), None)


@cache
def engine_kinds() -> Mapping[str, EngineKind]:
    """Return all kinds of engines by name."""
    kinds: list[EngineKind] = [import_module(module).KIND for module in MODULES]
    return {kind.name: kind for kind in kinds}


def engine_kind(name: str) -> EngineKind:
    """Return the kind of engine of this name. Raise ValueError, which lists all kinds, if there is none."""
    try:
        return engine_kinds()[name]
    except KeyError:
        raise ValueError(f"There is no engine {name!r}; there are {', '.join(engine_kinds())}.") from None


@cache
def is_delegated(scheduler: str) -> bool:
    """Return whether clusters with the scheduler of this name place pods by themselves; False for an unknown name."""
    offered = (one for kind in engine_kinds().values() for one in kind.schedulers)
    return any(one.is_delegated for one in offered if one.name == scheduler)


def load(path: str) -> Any:
    """Import a module and return its object. `path`: "module:name"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
