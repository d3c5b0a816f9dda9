"""Where jobs' pages are served: each declared port of a job has a host name, and so an origin, of its own.

`<job id>-<port>.<services host>`: 42 characters at most, so it fits the 63 of a DNS label. By default the services host
is `localhost`, whose names browsers take for this machine; for browsers elsewhere it is a wildcard name.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from controlplane.config.environment import SettingInvalid

LOCAL = "localhost"
NAME_MOST = 253 - 43  # what DNS allows, less the label and its dot
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_LABEL = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([1-9][0-9]{0,4})")
_PORT_MOST = 65535


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """One declared port of a job, as a host name says it; whether there is such a job is not known."""

    job_id: str
    port: int

    @property
    def label(self) -> str:
        return f"{self.job_id}-{self.port}"


@dataclass(frozen=True, slots=True)
class ServicesHost:
    """The host below which jobs' pages are. `netloc_port` is ":8000", or "" for the scheme's own port."""

    scheme: str
    name: str
    netloc_port: str

    @property
    def is_local(self) -> bool:
        """Whether a browser takes the names for its own machine, wherever it runs."""
        return self.name == LOCAL or self.name.endswith(f".{LOCAL}")

    def origin(self, address: ServiceAddress, own_host: str = "") -> str:
        """Return the origin of a job's port, without a slash at its end. `own_host` is the Host header with which the
        control plane was asked: a tunnel (`ssh -L 9000:localhost:8000`) has another local port than the server."""
        port = _port_of(own_host) if self.is_local and own_host else self.netloc_port
        return f"{self.scheme}://{address.label}.{self.name}{port}"

    def find(self, host: str) -> ServiceAddress | None:
        """Return the job's port that a Host header names, or None."""
        label, dot, name = _name_of(host).partition(".")
        match = _LABEL.fullmatch(label) if dot and name == self.name else None
        if match is None or int(match[2]) > _PORT_MOST:
            return None
        return ServiceAddress(match[1], int(match[2]))

    def own_origin(self, public_url: str, host: str) -> str:
        """Return the control plane's origin for a browser that asked a job's host, named by its Host header."""
        if not self.is_local:
            return public_url
        public = urlsplit(public_url)
        name = _name_of(public.netloc) if is_loopback(_name_of(public.netloc), is_any=False) else LOCAL
        return f"{self.scheme}://{name}{_port_of(host)}"

    def is_reachable_from(self, own_host: str) -> bool:
        """Whether a browser that reaches the control plane under this name (a Host header, or the netloc of its public
        address) also reaches jobs' pages."""
        return not self.is_local or is_loopback(_name_of(own_host))


def services_host(setting: str, public_url: str, port: int) -> ServicesHost:
    """Return the host that TRAINYARD_SERVICES_HOST names, else names under localhost on the server's own port. Raises
    SettingInvalid."""
    if not setting:
        return ServicesHost("http", LOCAL, f":{port}")
    name, colon, given_port = setting.lower().partition(":")
    is_port = given_port.isdecimal() and 1 <= int(given_port) <= _PORT_MOST
    if not _NAME.fullmatch(name) or len(name) > NAME_MOST or (colon and not is_port) or _is_address(name):
        raise SettingInvalid(
            f"TRAINYARD_SERVICES_HOST must be a host name such as jobs.example.org, without scheme, path or *, not"
            f" {setting!r}."
        )
    public = urlsplit(public_url)
    return ServicesHost(public.scheme, name, f":{given_port}" if colon else _port_of(public.netloc))


def is_loopback(name: str, *, is_any: bool = True) -> bool:
    """Whether a host name or address means the machine that the browser runs on. `is_any`: 0.0.0.0 counts, which a
    server that listens on all addresses calls itself, and which says nothing of where browsers are."""
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == LOCAL
    return address.is_loopback or (is_any and address.is_unspecified)


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    return re.sub(r":\d*$", "", host.lower())


def _port_of(netloc: str) -> str:
    match = re.search(r":\d+$", netloc)
    return match[0] if match else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
