"""What is used of NetApp's package. Importing this module imports the package."""

from collections.abc import Mapping
from typing import Any

from netapp_ontap.error import NetAppRestError
from netapp_ontap.host_connection import HostConnection, LoggingAdapter
from netapp_ontap.resources import Job, Snapshot, Volume

from controlplane.config.netapp_places import OntapPlace


class Kinds:
    """The package's classes by kind."""

    error: type[Exception] = NetAppRestError
    _classes: Mapping[str, Any] = {"volume": Volume, "snapshot": Snapshot, "job": Job}

    def __getitem__(self, kind: str) -> Any:
        return self._classes[kind]


def connect(place: OntapPlace, secrets: Mapping[str, str], seconds: tuple[float, float]) -> HostConnection:
    """Return a connection that repeats nothing: commands are repeated as a whole. `seconds`: to connect, to answer."""
    connection = HostConnection(
        place.host, **secrets, port=place.port, verify=place.ca_file or True, protocol_timeouts=seconds
    )
    session = connection.session
    # Neither a proxy nor another certificate authority of the environment gets the password.
    session.trust_env = False
    session.mount(connection.origin, LoggingAdapter(connection, max_retries=0, timeout=seconds))
    # With an incomplete Location, as ONTAP sends it while a job runs, the package waits for the job by itself.
    session.hooks["response"].append(lambda answer, **_: answer.headers.pop("Location", None) and None)
    return connection
