"""Credentials of clusters: stored encrypted, and decrypted only to open an engine.

They can be decrypted only with the installation's key. After a change of that key, the previous one in
TRAINYARD_SECRET_KEY_FALLBACKS still decrypts older values.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from django.conf import settings

from controlplane.models import Cluster, Counter

if TYPE_CHECKING:
    from cryptography.fernet import MultiFernet


INSTALLATION_BITS = 48


class CredentialsUnreadable(Exception):
    """The stored value was encrypted with a key that this installation does not have; the message states the next
    step."""


def encrypt(credentials: Mapping[str, Any]) -> str:
    """Return the credentials as JSON, encrypted with the installation's key; "" for none."""
    if not credentials:
        return ""
    return _fernet().encrypt(json.dumps(dict(credentials)).encode()).decode()


def decrypt(stored: str) -> dict[str, Any]:
    """Return the credentials that `encrypt` encrypted; {} for "". Raise CredentialsUnreadable if none of the
    installation's keys decrypts them."""
    from cryptography.fernet import InvalidToken

    if not stored:
        return {}
    try:
        opened: dict[str, Any] = json.loads(_fernet().decrypt(stored.encode()))
    except InvalidToken as error:
        raise CredentialsUnreadable(
            "The cluster's credentials were stored under another secret key. Give them again with `yard cluster edit`,"
            " or name the earlier key in TRAINYARD_SECRET_KEY_FALLBACKS."
        ) from error
    return opened


@cache
def installation() -> str:
    """Return this installation's id: 12 hexadecimal digits, drawn once per database and read once per process. Not
    a secret: as a label in clusters it distinguishes our objects from those of another Trainyard."""
    number, _ = Counter.objects.get_or_create(
        name="installation", defaults={"value": secrets.randbits(INSTALLATION_BITS)}
    )
    return f"{number.value:0{INSTALLATION_BITS // 4}x}"


def engine_settings(cluster: Cluster) -> dict[str, Any]:
    """Return the settings for engines.registry.open_engine: the cluster's own, its decrypted credentials, scheduler
    and name, and the installation's id. Raise CredentialsUnreadable if the credentials cannot be decrypted."""
    return {
        **cluster.settings,
        "installation": installation(),
        "credentials": _usable(decrypt(cluster.credentials)),
        "scheduler": cluster.scheduler,
        "cluster": cluster.name,
        "has_mpi_operator": cluster.has_found("mpi_operator"),
    }


def _usable(credentials: dict[str, Any]) -> dict[str, Any]:
    """Return the credentials. `allow_exec`, the stored permission to run exec plugins, is left out unless
    TRAINYARD_ALLOW_KUBECONFIG_EXEC allows them."""
    if settings.ALLOW_KUBECONFIG_EXEC:
        return credentials
    return {name: value for name, value in credentials.items() if name != "allow_exec"}


def _fernet() -> MultiFernet:
    """Return the cipher: the current secret key encrypts, the fallback keys too can decrypt."""
    from cryptography.fernet import Fernet, MultiFernet

    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(secret_key: str) -> bytes:
    """Return a key derived from `secret_key` for this purpose. One hash suffices, because the secret is long and
    random."""
    return base64.urlsafe_b64encode(hashlib.sha256(b"cluster credentials:" + secret_key.encode()).digest())
