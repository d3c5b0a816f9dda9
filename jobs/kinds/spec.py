"""Read a submission as a whole: every field of jobs/fields, then checks across fields. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from controlplane import fields
from controlplane.fields import FieldError
from controlplane.notation import decimal
from jobs.fields import mounts
from jobs.fields.declared import DECLARED, FIELDS
from jobs.kinds.base import is_share
from jobs.kinds.registry import KINDS, kind_named

# Limit in bytes: job lists contain whole specs, and 60 clones of a 1 MiB spec made a page of 57 MiB.
SPEC_MOST_BYTES = 64 * 1024


class SpecInvalid(ValueError):
    """A refused submission; `errors` lists the fields and what to do."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(error.detail for error in errors))
        self.errors = errors


def parse_spec(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's fields in stored units (`gpus` and `cpus` in thousandths) with defaults filled in. Raises
    SpecInvalid with every refused field, not only the first."""
    spec, errors = fields.read_fields(body, FIELDS, "field")
    errors += [_missing(field.name) for field in DECLARED if field.is_required and field.name not in body]
    if not errors:
        errors = _check_together(spec, body) or _check_size(spec)
    if errors:
        raise SpecInvalid(errors)
    return spec


def _missing(name: str) -> FieldError:
    return FieldError(f"/{name}", "required", f"Give the job a {name}.")


def _check_together(spec: dict[str, Any], body: Mapping[str, Any]) -> list[FieldError]:
    """Fill in kind-specific defaults in `spec`, then return the errors of fields that do not fit one another."""
    kind = kind_named(spec["kind"])
    if kind is None:
        return [FieldError("/kind", "unknown_kind", f"The kind is one of: {', '.join(sorted(KINDS))}.")]
    errors = []
    if spec["gpu_memory_mib"] is not None and body.get("gpus") is not None:
        errors.append(
            FieldError("/gpu_memory_mib", "gpus_or_memory", "Give gpus or gpu_memory_mib, not both.")
        )
    errors += [
        FieldError(f"/secret_env/{name}", "name_twice", f"{name} is in env too; leave it out of one of them.")
        for name in spec["secret_env"]
        if name in spec["env"]
    ]
    places = [mount["mount_path"] for mount in (*spec["volumes"], *spec["datasets"])]
    if len(places) != len(set(places)):
        field = "/datasets" if spec["datasets"] else "/volumes"
        errors.append(FieldError(field, "mounted_twice", "Two mounts have the same mount_path."))
    spec["gpus"] = spec["gpus"] or 0
    if is_share(spec) and spec["workers"] > 1:
        errors.append(
            FieldError(
                "/workers", "share_needs_one_worker", "A job with a share of a GPU has exactly one worker."
            )
        )
    for one in DECLARED:
        if one.kind_default and spec[one.name] is None:
            spec[one.name] = getattr(kind, one.kind_default)
    spec.update(kind.fill(spec))
    return errors + kind.check(spec, body)


def _check_size(spec: Mapping[str, Any]) -> list[FieldError]:
    sizes = {name: len(json.dumps(value, ensure_ascii=False).encode()) for name, value in spec.items()}
    total = sum(sizes.values())
    if total <= SPEC_MOST_BYTES:
        return []
    largest = max(sizes, key=sizes.__getitem__)
    detail = (
        f"The job's spec has {total} bytes, {sizes[largest]} of them in {largest}; at most {SPEC_MOST_BYTES} in all."
        " Put what is longer into a file."
    )
    return [FieldError(f"/{largest}", "spec_too_large", detail)]


def to_edge(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec in REST form: GPUs and CPUs as decimal numbers, tuples as lists."""
    edge = {name: list(value) if isinstance(value, tuple) else value for name, value in spec.items()}
    return edge | rest_units(spec)


def rest_units(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that REST writes in other units or another form than the spec."""
    return {
        "gpus": None if spec["gpu_memory_mib"] is not None else decimal(spec["gpus"]),
        "cpus": decimal(spec["cpus"]),
        "volumes": [mounts.edge(mount) for mount in spec.get("volumes", ())],
    }
