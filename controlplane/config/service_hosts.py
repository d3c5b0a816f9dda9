"""Host names for jobs' pages: each declared port of a job has a host name, and thus an origin, of its own.

`<job id>-<port>` has at most 42 characters, while DNS allows 63 per label. The default services host is
`localhost`, whose subdomains browsers resolve to their own machine; remote browsers need a wildcard DNS name.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from controlplane.config.environment import SettingInvalid

LOCAL = "localhost"
# DNS's limit on names, minus the first label and its dot.
NAME_MOST = 253 - 43
_NAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_LABEL = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-([1-9][0-9]{0,4})")
_PORT_MOST = 65535


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The port of a job that a host name refers to. The job need not exist."""

    job_id: str
    port: int

    @property
    def label(self) -> str:
        return f"{self.job_id}-{self.port}"


@dataclass(frozen=True, slots=True)
class ServicesHost:
    """The parent host name of jobs' pages. `netloc_port`: ":8000", or "" for the scheme's default port."""

    scheme: str
    name: str
    netloc_port: str

    @property
    def is_local(self) -> bool:
        """Return whether the names are under localhost, which browsers resolve to their own machine."""
        return self.name == LOCAL or self.name.endswith(f".{LOCAL}")

    def origin(self, address: ServiceAddress, own_host: str = "") -> str:
        """Return the origin of a job's port, without trailing slash. `own_host`: the Host header of the request,
        whose port differs from the server's behind a tunnel (`ssh -L 9000:localhost:8000`)."""
        port = _port_of(own_host) if self.is_local and own_host else self.netloc_port
        return f"{self.scheme}://{address.label}.{self.name}{port}"

    def find(self, host: str) -> ServiceAddress | None:
        """Return the job and port that a Host header refers to; None if it is no job's host."""
        label, dot, name = _name_of(host).partition(".")
        match = _LABEL.fullmatch(label) if dot and name == self.name else None
        if match is None or int(match[2]) > _PORT_MOST:
            return None
        return ServiceAddress(match[1], int(match[2]))

    def own_origin(self, public_url: str, host: str) -> str:
        """Return the origin of the control plane's own pages, for a browser that requested this job's host (`host`: its
        Host header)."""
        if not self.is_local:
            return public_url
        public = urlsplit(public_url)
        name = _name_of(public.netloc) if is_loopback(_name_of(public.netloc), is_any=False) else LOCAL
        return f"{self.scheme}://{name}{_port_of(host)}"

    def is_reachable_from(self, own_host: str) -> bool:
        """Return whether a browser that reaches the control plane as `own_host` (Host header, or netloc of the
        public address) can also reach jobs' pages."""
        return not self.is_local or is_loopback(_name_of(own_host))


def services_host(setting: str, public_url: str, port: int) -> ServicesHost:
    """Return the parent host of jobs' pages for `setting` (TRAINYARD_SERVICES_HOST); if it is "", `localhost` with
    `port`, over http. Else `public_url` gives the scheme, and the port if the setting has none. Raise SettingInvalid
    for an invalid name or port."""
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
    """Return whether a host name or IP address refers to the local machine. `is_any`: also accept 0.0.0.0 and ::, the
    address of a server that listens on all interfaces."""
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == LOCAL
    return address.is_loopback or (is_any and address.is_unspecified)


def _name_of(host: str) -> str:
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
