"""Registers a minimal engine kind with one of each: setting, credential, scheduler of the cluster, check, and
form."""

from collections.abc import Mapping
from typing import Any

from controlplane import fields
from controlplane.clusters.settings import Knob, SettingsInvalid
from controlplane.engines.kinds import PLANNER, ClusterForm, Credential, EngineKind, Scheduler

KNOBS = {"partition": Knob(fields.dns_label(50), "batch", "The partition that jobs are given to.")}


def read_settings(sent: Mapping[str, Any] | None) -> dict[str, Any]:
    read, errors = fields.read_fields(sent or {}, KNOBS, "setting")
    if errors:
        raise SettingsInvalid(errors)
    return {name: read[name] for name in sent or {}}


KIND = EngineKind(
    name="slurm",
    opens="controlplane.engines.memory:shared_engine",
    checks="tests.newcomer.engine_kind:check",
    read_settings=read_settings,
    read_entry=lambda text: ({"partition": text}, {}),
    schedulers=(PLANNER, Scheduler("slurmctld", "Slurm itself", is_delegated=True)),
    knobs=KNOBS,
    credentials={"token": Credential(fields.text(100), {"type": "string"}, "file", "JSON web token")},
    form=ClusterForm("With a token", "", ("The controller answers.",), "yard cluster add hpc"),
)


def check(settings: Mapping[str, Any]) -> tuple[()]:
    return ()
