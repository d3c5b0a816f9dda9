"""Readers of what a job asks of the Kubernetes under it: secrets, and resources by their own names. Pure."""

import re
from typing import Any

from controlplane.cluster_settings import QUALIFIED_NAME, name_like, object_name, quantity
from jobs.kinds import checks
from jobs.kinds.checks import Refused

_SECRET_KEY = re.compile(r"[-._A-Za-z0-9]+")
_NATIVE = re.compile(
    r"ephemeral-storage|hugepages-[0-9]+[KMG]i"
)  # the names without a domain that can be asked for
_GPU_RESOURCES = ("nvidia.com/", "amd.com/gpu", "gpu.intel.com/")

pull_secrets = checks.listed(object_name, 20)


def secret_key(value: Any) -> dict[str, str]:
    """{"secret": "wandb", "key": "token"}: where a variable's value comes from."""
    if not isinstance(value, dict) or set(value) != {"secret", "key"}:
        raise Refused("not_a_secret_key", 'Name the secret and its key: {"secret": "wandb", "key": "token"}.')
    key = name_like(_SECRET_KEY, 253, "a key of a secret: letters, digits, '-', '_' and '.'")
    return {
        "secret": checks.inside(object_name, value["secret"], "/secret"),
        "key": checks.inside(key, value["key"], "/key"),
    }


def extra_resources(value: Any) -> dict[str, str]:
    """{"vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "1Gi"}: what each pod gets beside GPUs, CPUs and memory."""
    wanted: dict[str, str] = checks.mapped(QUALIFIED_NAME, 317, quantity, 20)(value)
    for name in wanted:
        where = "/" + checks.pointer_part(name)
        if name.startswith(_GPU_RESOURCES) or "gpu" in name.lower():
            detail = "GPUs are asked for with gpus or gpu_memory_mib, so that quotas count them."
            raise Refused("gpus_go_by_quota", detail, where)
        if "/" not in name and not _NATIVE.fullmatch(name):
            detail = "Ask for cpus and memory_mib by these fields; other resources have a name like vendor.com/thing."
            raise Refused("not_an_extra_resource", detail, where)
    return wanted
