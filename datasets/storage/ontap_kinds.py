"""Imports from NetApp's package. Import this module lazily, since it imports the package."""

from collections.abc import Mapping
from typing import Any

from netapp_ontap.error import NetAppRestError
from netapp_ontap.host_connection import HostConnection, LoggingAdapter
from netapp_ontap.resources import Job, Snapshot, Volume

from datasets.storage.ontap_driver import OntapConfig


class Kinds:
    """Classes of NetApp's package, by the kind names that OntapClient uses."""

    error: type[Exception] = NetAppRestError
    _classes: Mapping[str, Any] = {"volume": Volume, "snapshot": Snapshot, "job": Job}

    def __getitem__(self, kind: str) -> Any:
        return self._classes[kind]


def connect(config: OntapConfig, secrets: Mapping[str, str], seconds: tuple[float, float]) -> HostConnection:
    """Return a connection without retries, because commands are retried as a whole. `secrets`: the fields of the
    class's credentials. `seconds`: limits to connect and to answer."""
    connection = HostConnection(
        config.host, **secrets, port=config.port, verify=config.ca_file or True, protocol_timeouts=seconds
    )
    session = connection.session
    # Ignore proxies and certificate authorities from the environment, which would get the password.
    session.trust_env = False
    session.mount(connection.origin, LoggingAdapter(connection, max_retries=0, timeout=seconds))
    # Without a complete Location header, as ONTAP sends it while a job runs, the package would wait for the
    # job itself.
    session.hooks["response"].append(lambda answer, **_: answer.headers.pop("Location", None) and None)
    return connection
