"""The declaration of the Kubernetes engine: settings, credentials and their form, schedulers, preflight."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane import fields
from controlplane.clusters.settings import SettingsInvalid
from controlplane.engines.kinds import PLANNER, ClusterForm, Credential, EngineKind, Scheduler
from controlplane.engines.kubernetes.settings import KNOBS, parse_settings
from controlplane.fields import FieldError

KUBECONFIG_BYTES = 256 * 1024
IN_CLUSTER = "in-cluster"

CREDENTIALS = {
    "in_cluster": Credential(fields.switch, {"type": "boolean"}, "way", "Trainyard runs in it"),
    "kubeconfig": Credential(
        fields.text(KUBECONFIG_BYTES),
        {"type": "string", "writeOnly": True},
        "file",
        "Kubeconfig file",
        "Stored encrypted, never shown again. Certificates and tokens must be inside it: kubectl config view --flatten"
        " --minify --raw",
        "Empty: the credentials stay. They are stored encrypted and never shown.",
    ),
    "context": Credential(
        fields.text(253),
        {"type": "string"},
        "text",
        "Context",
        "Empty: its current one.",
        suggestions="contexts",
    ),
    "allow_exec": Credential(
        fields.switch,
        {"type": "boolean"},
        "switch",
        "The kubeconfig may run its login program on this server",
    ),
}
FORM = ClusterForm(
    default_way="With a kubeconfig",
    script="js/cluster-form.js",
    covers=(
        "The API server is reachable, serves Kubernetes, and the clocks agree.",
        "Trainyard's account has all the rights it needs.",
        "The GPUs it allocates, and whether they are shared.",
        "The storage class for working directories and checkpoints.",
        "Whether the MPI operator, KAI and Prometheus are installed.",
    ),
    example="yard cluster add prod \\\n  --kubeconfig ~/.kube/config --context prod",
)


def read_knobs(sent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the submitted settings, validated. Defaults are not added, so that a changed default applies to existing
    clusters. Raise SettingsInvalid for an invalid setting."""
    read = parse_settings(sent or {})
    return {name: list(read[name]) if isinstance(read[name], tuple) else read[name] for name in sent or {}}


def check_credentials(given: Mapping[str, Any], is_new: bool, may_run_programs: bool) -> None:
    """Raise SettingsInvalid for incomplete or contradictory credentials, and for `allow_exec` unless
    `may_run_programs`. A new cluster (`is_new`) needs a kubeconfig or `in_cluster`; later a context alone selects
    another one of the stored kubeconfig. Messages never quote a kubeconfig, which contains secrets."""
    if "allow_exec" in given and not may_run_programs:
        raise _refused(
            "/allow_exec",
            "exec_not_allowed",
            "A login program runs on this server with its rights; the server's operator must allow it:"
            " TRAINYARD_ALLOW_KUBECONFIG_EXEC=yes. A service account's token needs no program.",
        )
    if "in_cluster" in given:
        if len(given) > 1:
            name = next(name for name in given if name != "in_cluster")
            raise _refused(f"/{name}", "one_of_two", "Give a kubeconfig or in_cluster, not both.")
    elif "kubeconfig" in given:
        _check_kubeconfig(given["kubeconfig"], given.get("context", ""))
    elif is_new:
        detail = "Give a kubeconfig, or in_cluster where the server runs in it."
        raise _refused("/kubeconfig", "required", detail)


def read_entry(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (settings, credentials) for `in-cluster` or `/path/to/kubeconfig@context`, which is read at once. Raise
    ValueError if it cannot be read."""
    if text == IN_CLUSTER:
        return {}, {"in_cluster": True}
    path, _, context = text.partition("@")
    try:
        return {}, {"kubeconfig": Path(path).read_text(encoding="utf-8"), "context": context}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"kubernetes: takes {IN_CLUSTER} or the path of a kubeconfig, and {path!r} cannot be read: {error}"
        ) from error


def _check_kubeconfig(text: str, context: str) -> None:
    """Raise SettingsInvalid for faults that the text shows; the preflight finds the others."""
    from controlplane.kubernetes_api.kubeconfig import (  # brings YAML
        KubeconfigUnreadable,
        chosen_context,
        read_kubeconfig,
    )

    fault = "/kubeconfig", "kubeconfig_unreadable"
    try:
        config = read_kubeconfig(text)
        fault = "/context", "context_unknown"
        chosen_context(config, context)
    except KubeconfigUnreadable as error:
        raise _refused(*fault, str(error)) from None


def _refused(pointer: str, code: str, detail: str) -> SettingsInvalid:
    return SettingsInvalid([FieldError(pointer, code, detail)])


KIND = EngineKind(
    name="kubernetes",
    opens="controlplane.engines.kubernetes.engine:open_cluster",
    checks="controlplane.engines.kubernetes.preflight:check_cluster",
    read_settings=read_knobs,
    read_entry=read_entry,
    schedulers=(PLANNER, Scheduler("kai", "KAI Scheduler, installed there", is_delegated=True)),
    knobs=KNOBS,
    credentials=CREDENTIALS,
    check_credentials=check_credentials,
    variable="TRAINYARD_KUBERNETES",
    form=FORM,
    runs_containers=True,
    downloads_code=True,
    copies_outputs=True,
    claims_volumes=True,
    has_namespaces=True,
    rename_hint="Make the names of its nodes unique: yard cluster edit {cluster} --set node_suffix={cluster}",
)
