"""Fields that only jobs on Kubernetes have: secrets and extended resources. Pure."""

import re
from typing import Any

from controlplane import fields, notation
from controlplane.api import json_schema as schemas
from controlplane.clusters.settings import QUALIFIED_NAMES, QUANTITY, name_like, object_name
from controlplane.fields import Refused
from jobs.fields import values

_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]+")
# Resources without a domain that a job may request; `cpu` and `memory` have fields of their own.
_NATIVE = re.compile(r"ephemeral-storage|hugepages-(?P<page>[1-9][0-9]*[KMG]i)")
_LONGEST_QUANTITY = 64
_GPU_RESOURCES = ("nvidia.com/", "amd.com/gpu", "gpu.intel.com/")

PULL_SECRETS = values.listed(object_name, 20)


def secret_key(value: Any) -> dict[str, str]:
    """Return the value {"secret": "wandb", "key": "token"}, the source of an environment variable. Raises Refused
    if it is malformed."""
    if not isinstance(value, dict) or set(value) != {"secret", "key"}:
        raise Refused("not_a_secret_key", 'Name the secret and its key: {"secret": "wandb", "key": "token"}.')
    key = name_like(_SECRET_KEY, 253, "a key of a secret: letters, digits, '-', '_' and '.'")
    return {
        "secret": fields.inside(object_name, value["secret"], "/secret"),
        "key": fields.inside(key, value["key"], "/key"),
    }


def extra_resources(value: Any) -> dict[str, str]:
    """Return the value {"vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "1Gi"}: resources of each pod besides
    GPUs, CPUs and memory. Raises Refused for those, and for malformed names and quantities."""
    wanted: dict[str, str] = fields.mapped(QUALIFIED_NAMES, _quantity, 20)(value)
    for name, asked in wanted.items():
        _check_extra(name, asked, "/" + fields.pointer_part(name))
    return wanted


def _check_extra(name: str, asked: str, where: str) -> None:
    if name.startswith(_GPU_RESOURCES) or "gpu" in name.lower():
        detail = "GPUs are asked for with gpus or gpu_memory_mib, so that quotas count them."
        raise Refused("gpus_go_by_quota", detail, where)
    native = _NATIVE.fullmatch(name)
    if "/" not in name and not native:
        detail = (
            "Ask for cpus and memory_mib by these fields; other resources have a name like vendor.com/thing."
        )
        raise Refused("not_an_extra_resource", detail, where)
    # Imported here, not at the top: see jobs/fields/mounts.py.
    from controlplane.clusters import quantities

    page = native["page"] if native else None
    if page and quantities.amount(asked) % quantities.amount(page):
        raise Refused("not_whole_pages", f"Pages are of {page} here; ask for a multiple of it.", where)


def _quantity(value: Any) -> str:
    """Return a positive quantity, such as "4" or "20Gi", as text; a whole number is accepted too. Raises Refused
    for any other value, and beyond quantities.MOST."""
    from controlplane.clusters import quantities

    if not isinstance(value, bool) and isinstance(value, int) and value > 0:
        # Python limits the digits of an integer that it prints; such a quantity could not be written.
        value = str(min(value, quantities.MOST + 1))
    if not isinstance(value, str) or len(value) > _LONGEST_QUANTITY or not QUANTITY.fullmatch(value):
        raise Refused(
            "bad_quantity",
            "This must be a whole number above 0, or one with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi, such as 4 or 20Gi.",
        )
    if quantities.amount(value) > quantities.MOST:
        raise Refused("out_of_range", "No machine has so much of it; ask for less.")
    return value


def _parse_secret(line: str) -> tuple[str, dict[str, str]]:
    name, source = notation.parse_pair(line)
    secret, colon, key = source.partition(":")
    if not (colon and secret and key):
        raise ValueError(line)
    return name, {"secret": secret, "key": key}


SECRET_ENV = values.mapped(
    fields.mapped(fields.ENV_NAMES, secret_key, 100),
    100,
    schemas.record(
        "A key of a secret in the project's namespace.", secret=schemas.STRING, key=schemas.STRING
    ),
    parse=_parse_secret,
    write=lambda pair: f"{pair[0]}={pair[1]['secret']}:{pair[1]['key']}",
    text="NAME=SECRET:KEY",
)
# A plain number is accepted too.
EXTRA_RESOURCES = values.mapped(
    extra_resources,
    20,
    {"type": ["string", "integer"]},
    answer={"type": "object", "additionalProperties": schemas.STRING},
)
