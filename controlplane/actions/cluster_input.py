"""Validate what an admin submits for a cluster, for REST and pages. Checks that need the cluster itself are
in the preflight.

Error messages never quote credentials.
"""

from collections.abc import Mapping
from typing import Any

from django.conf import settings

from controlplane.actions.errors import Invalid, invalid
from controlplane.clusters.settings import SettingsInvalid
from controlplane.engines.kinds import Credential, EngineKind, engine_kinds
from controlplane.fields import FieldError


def credential_fields() -> dict[str, Credential]:
    """Return the credential fields that any kind of cluster takes, by field name."""
    return {name: one for kind in engine_kinds().values() for name, one in kind.credentials.items()}


def settings_for(engine: str, sent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the complete, validated settings for a cluster of this engine. `sent`: the submitted ones, None if the
    field is missing. Raise Invalid with pointers below /settings, or for an unknown engine."""
    try:
        return _kind(engine).read_settings(sent)
    except SettingsInvalid as refused:
        errors = (error._replace(pointer=f"/settings{error.pointer}") for error in refused.errors)
        raise Invalid(*errors) from refused


def engine_for_new(sent: Mapping[str, Any]) -> str:
    """Return the submitted `engine` of a new cluster, unchecked. If it is missing, return the only engine that takes
    all the submitted credentials; raise Invalid if there is not exactly one."""
    if "engine" in sent:
        return str(sent["engine"])
    given = {name for name in credential_fields() if sent.get(name)}
    kinds = [kind.name for kind in engine_kinds().values() if given and given <= kind.credentials.keys()]
    if len(kinds) != 1:
        known = ", ".join(engine_kinds())
        raise invalid("/engine", "required", f"Give the engine, one of: {known}.")
    return kinds[0]


def credentials_for(engine: str, sent: Mapping[str, Any], *, is_new: bool) -> dict[str, Any]:
    """Return the submitted credentials, not yet encrypted; {} if there are none. `is_new`: the cluster has none yet.
    Raise Invalid for a field that this engine does not take, and for values or combinations that its kind refuses."""
    kind = _kind(engine)
    given = {name: sent[name] for name in credential_fields() if sent.get(name)}
    if foreign := given.keys() - kind.credentials.keys():
        detail = f"A {engine} cluster is reached without it; leave it out."
        raise Invalid(*(FieldError(f"/{name}", "not_for_this_engine", detail) for name in sorted(foreign)))
    try:
        kind.check_credentials(given, is_new, settings.ALLOW_KUBECONFIG_EXEC)
    except SettingsInvalid as refused:
        raise Invalid(*refused.errors) from refused
    return given


def _kind(engine: str) -> EngineKind:
    kinds = engine_kinds()
    if engine not in kinds:
        raise invalid("/engine", "unknown_engine", f"The engine is one of: {', '.join(kinds)}.")
    return kinds[engine]
