"""The `yard` line that submits what a form or a job says. Pure; shown beside the form and on the job's spec."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.kinds.artifacts import ALWAYS, line
from jobs.kinds.base import Kind
from jobs.kinds.registry import DEFAULT, kind_named

# field -> option, and what the field is when the option is left out
OPTIONS: dict[str, tuple[str, Any]] = {
    "cpus": ("--cpus", 1),
    "workers": ("--workers", 1),
    "node_pool": ("--node-pool", None),
    "working_dir": ("--working-dir", None),
    "max_runtime_seconds": ("--max-runtime", None),
    "expected_runtime_seconds": ("--expected-runtime", None),
    "retries": ("--retries", 0),
    "ttl_seconds_after_finished": ("--ttl", None),
}


# The end of a mount that cannot be written, as of other container tools.
READ_ONLY = "ro"


def yard_submit(project: str, spec: Mapping[str, Any]) -> str:
    """Return one shell line. `spec` is a submission as REST takes it; fields that are defaults are left out."""
    kind = kind_named(str(spec.get("kind"))) or DEFAULT
    options = _options(kind, spec)
    words = ["yard", kind.command, str(spec.get("name") or "NAME"), "-p", project or "PROJECT", *options]
    command = [*(spec.get("command") or ()), *(spec.get("args") or ())]
    return " ".join(shlex.quote(word) for word in [*words, *(["--", *command] if command else [])])


def _options(kind: Kind, spec: Mapping[str, Any]) -> Iterator[str]:
    if spec.get("image"):
        yield from ("-i", str(spec["image"]))
    if spec.get("gpus"):
        yield from ("-g", _decimal(spec["gpus"]))
    if spec.get("gpu_memory_mib"):
        yield from ("--gpu-memory", f"{spec['gpu_memory_mib']}Mi")
    yield from kind.command_flags
    if spec.get("memory_mib") not in (None, 1024):
        yield from ("--memory", f"{spec['memory_mib']}Mi")
    for name, (option, default) in {**OPTIONS, **kind.command_options}.items():
        if spec.get(name) not in (None, "", default):
            yield from (option, _decimal(spec[name]))
    if spec.get("priority") not in (None, kind.priority):
        yield from ("--priority", str(spec["priority"]))
    yield from _repeated(spec)
    if spec.get("large_shm"):
        yield "--large-shm"
    if spec.get("preemptible") is False and kind.is_preemptible:
        yield "--no-preemptible"


def _repeated(spec: Mapping[str, Any]) -> Iterator[str]:
    for name, value in (spec.get("env") or {}).items():
        yield from ("-e", f"{name}={value}")
    for name, source in (spec.get("secret_env") or {}).items():
        yield from ("--secret-env", f"{name}={source['secret']}:{source['key']}")
    for name in spec.get("image_pull_secrets") or ():
        yield from ("--image-pull-secret", name)
    for name, value in (spec.get("extra_resources") or {}).items():
        yield from ("--resource", f"{name}={value}")
    for name, value in (spec.get("labels") or {}).items():
        yield from ("-l", f"{name}={value}")
    mounts = spec.get("datasets") or ()
    for mount in mounts:
        yield from ("--dataset", f"{mount['dataset']}@{mount['version']}:{mount['mount_path']}")
    if any(mount.get("cached") for mount in mounts):
        yield "--cached"
    for mount in spec.get("volumes") or ():
        yield from ("-v" if "host_path" in mount else "--pvc", mount_line(mount))
    for event in spec.get("snapshot_on") or ():
        yield from ("--snapshot-on", event)
    for kept in spec.get("artifacts") or ():
        yield from ("--keep-always" if kept.get("when") == ALWAYS else "--keep", line(kept))
    for port in spec.get("ports") or ():
        yield from ("--port", str(port["port"] if isinstance(port, Mapping) else port))


def mount_line(mount: Mapping[str, Any]) -> str:
    """Return a mount as --pvc and -v take it."""
    if "new" in mount:
        new = mount["new"]
        words = [
            new["storage_class"],
            str(new["size"]),
            mount["mount_path"],
            *([new["name"]] if "name" in new else []),
        ]
        return ":".join(words)
    source = mount.get("volume") or mount.get("host_path")
    return f"{source}:{mount['mount_path']}{f':{READ_ONLY}' if mount.get('read_only') else ''}"


def _decimal(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
