"""What is used of Azure's packages. Importing this module imports the packages."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import ClientSecretCredential
from azure.mgmt.core.polling.arm_polling import ARMPolling
from azure.mgmt.netapp import NetAppManagementClient

from controlplane.config.netapp_places import AnfPlace

__all__ = ["AzureError", "InThisThread", "connect"]


def connect(
    place: AnfPlace, secrets: Mapping[str, str], seconds: tuple[float, float]
) -> NetAppManagementClient:
    """Return a client that repeats nothing: commands are repeated as a whole. `seconds`: to connect, to answer."""

    def pipeline() -> dict[str, Any]:
        # Neither a proxy nor another certificate authority of the environment gets the password.
        transport = RequestsTransport(
            connection_timeout=seconds[0],
            read_timeout=seconds[1],
            connection_verify=place.ca_file or True,
            use_env_settings=False,
        )
        return {"transport": transport, "retry_total": 0}

    credential = ClientSecretCredential(
        secrets["tenant_id"],
        secrets["client_id"],
        secrets["client_secret"],
        authority=place.authority or None,
        disable_instance_discovery=bool(place.authority),
        **pipeline(),
    )
    scopes: dict[str, Any] = (
        {"credential_scopes": [f"{place.endpoint.rstrip('/')}/.default"]} if place.endpoint else {}
    )
    return NetAppManagementClient(
        credential, place.subscription, place.endpoint or None, **scopes, **pipeline()
    )


class InThisThread(ARMPolling):
    """Waits in the thread that asks for the result: the package's own thread can neither be cancelled nor does it stop
    at a deadline, and has a database connection of its own."""

    def __init__(self, check: Callable[[], None], pause_seconds: tuple[float, float]) -> None:
        super().__init__(timeout=0)
        self._check, (self._pause, self._longest) = check, pause_seconds
        self._is_waited_for = False

    def finished(self) -> bool:
        """Return True until `wait`, so that the package starts no thread."""
        return not self._is_waited_for or super().finished()

    def wait(self) -> None:
        """Return when the operation has ended. Raises what `check` and the package raise."""
        self._is_waited_for = True
        self.run()

    def _delay(self) -> None:
        self._check()
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, self._longest)
