"""System checks of the lake's bucket and of storage classes. A wrong configuration of the lake is an error with a
hint; an S3 server without an answer or a missing package is only a warning, since many functions need neither."""

from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any
from uuid import uuid4

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, register

from datasets.storage.base import DISK_FULL, Blocked
from datasets.storage.bucket_config import BucketConfig, why_inside


@register("trainyard")
def check_lake(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Django system check: return errors and warnings about the lake's bucket, [] without one. Ignores
    `app_configs`."""
    config = settings.LAKE_BUCKET
    if config is None:
        return []
    return list(_check_network(config)) or list(_check_bucket(config))


def _check_network(config: BucketConfig) -> Iterator[CheckMessage]:
    where = why_inside(config.endpoint)
    if where and not settings.LAKE_MAY_BE_INSIDE:
        hint = "If your S3 server is there, set TRAINYARD_S3_ALLOW_PRIVATE=yes."
        yield Error(f"TRAINYARD_S3_ENDPOINT={where}.", hint=hint, id="trainyard.E020")


def _check_bucket(config: BucketConfig) -> Iterator[CheckMessage]:
    from datasets.storage.bucket import NO_SUCH_HOST, NOT_TRUSTED, Bucket, ClientConfig

    client = ClientConfig(connect_seconds=3, answer_seconds=5, request_seconds=10, retry_seconds=5, retries=1)
    try:
        Bucket(config, client).probe(f"probe/{uuid4().hex}")
    except Blocked as blocked:
        # A name may be made, and a certificate renewed, after the control plane has started.
        is_passing = blocked.code in ("unreachable", DISK_FULL, NO_SUCH_HOST, NOT_TRUSTED)
        kind = checks.Warning if is_passing else Error
        hint = (
            "Datasets cannot be synced or cached until then."
            if kind is checks.Warning
            else "Nothing was started."
        )
        yield kind(f"TRAINYARD_LAKE: {blocked.detail}", hint=hint, id="trainyard.E021")


@register("trainyard")
def check_storage_packages(app_configs: Sequence[Any] | None, **options: Any) -> list[CheckMessage]:
    """Django system check: return a warning for each storage class whose driver's package is not installed.
    Ignores `app_configs`."""
    needed = [(found.name, found.about.package) for found in settings.STORAGE_CLASSES.values() if found.about]
    return [
        checks.Warning(
            f"The storage class {name} needs the package {package}; its volumes cannot be made.",
            hint=f"pip install {package}",
            id="trainyard.W004",
        )
        for name, package in needed
        if package and not any(metadata.distributions(name=package))
    ]
