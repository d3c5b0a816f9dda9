"""Imports from Azure's packages. Import this module lazily, since it imports them."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import ClientSecretCredential
from azure.mgmt.core.polling.arm_polling import ARMPolling
from azure.mgmt.netapp import NetAppManagementClient

from datasets.storage.anf_driver import AnfConfig

__all__ = ["AzureError", "InThisThread", "connect"]


def connect(
    config: AnfConfig, secrets: Mapping[str, str], seconds: tuple[float, float]
) -> NetAppManagementClient:
    """Return a client without retries, because commands are retried as a whole. `secrets`: the fields of the
    class's credentials. `seconds`: limits to connect and to answer."""

    def pipeline() -> dict[str, Any]:
        # Ignore proxies and certificate authorities from the environment, which would get the password.
        transport = RequestsTransport(
            connection_timeout=seconds[0],
            read_timeout=seconds[1],
            connection_verify=config.ca_file or True,
            use_env_settings=False,
        )
        return {"transport": transport, "retry_total": 0}

    credential = ClientSecretCredential(
        secrets["tenant_id"],
        secrets["client_id"],
        secrets["client_secret"],
        authority=config.authority or None,
        disable_instance_discovery=bool(config.authority),
        **pipeline(),
    )
    scopes: dict[str, Any] = (
        {"credential_scopes": [f"{config.endpoint.rstrip('/')}/.default"]} if config.endpoint else {}
    )
    return NetAppManagementClient(
        credential, config.subscription, config.endpoint or None, **scopes, **pipeline()
    )


class InThisThread(ARMPolling):
    """Polls an operation in the calling thread: the package's own polling thread cannot be cancelled, has no
    deadline, and would open its own database connection."""

    def __init__(self, check: Callable[[], None], pause_seconds: tuple[float, float]) -> None:
        super().__init__(timeout=0)
        self._check, (self._pause, self._longest) = check, pause_seconds
        self._is_waited_for = False

    def finished(self) -> bool:
        """Return whether the operation has ended. Before `wait` the answer is True, because the package starts its
        polling thread for an unfinished operation."""
        return not self._is_waited_for or super().finished()

    def wait(self) -> None:
        """Poll until the operation has ended. Raises the errors of `check`, which is called before each poll, and
        of the package."""
        self._is_waited_for = True
        self.run()

    def _delay(self) -> None:
        self._check()
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, self._longest)
