"""The storage of this installation's lakes: a folder, or a bucket of an S3 endpoint. Opens no connection."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from datasets.storage.credential_files import SectionUnreadable, default_section

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*)?")


@dataclass(frozen=True, slots=True)
class BucketConfig:
    """A prefix in a bucket, and how to connect to it. `endpoint` "": Amazon's endpoint for the region. Without an
    access key the S3 client uses the credentials of the machine's role."""

    bucket: str
    prefix: str
    endpoint: str
    region: str
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)

    def below(self, name: str) -> BucketConfig:
        """Return the same bucket with `name` appended to the prefix."""
        prefix = f"{self.prefix}/{name}" if self.prefix else name
        keys = (self.access_key, self.secret_key, self.session_token)
        return BucketConfig(self.bucket, prefix, self.endpoint, self.region, *keys)


def bucket_config(
    url: str, endpoint: str, region: str, credentials_file: str, environment: Mapping[str, str]
) -> BucketConfig | None:
    """Return address and credentials of the bucket for `s3://bucket/prefix`; None for "". Credentials come from
    the file, in the format of ~/.aws/credentials, or without a file from AWS_ACCESS_KEY_ID and related names in
    `environment`. `endpoint`: "" for AWS. Raise ValueError, without secrets in the message, if an address or the
    file is malformed, or credentials are incomplete."""
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme != "s3" or not _BUCKET.fullmatch(parts.netloc):
        raise ValueError(
            "TRAINYARD_LAKE is like s3://bucket/prefix, or empty for the folder of TRAINYARD_LAKE_DIR."
        )
    prefix = parts.path.strip("/")
    if not _PREFIX.fullmatch(prefix) or ".." in prefix or parts.query or parts.fragment:
        raise ValueError("The prefix in TRAINYARD_LAKE has letters, digits, slashes and !_.*'()- only.")
    _check_endpoint(endpoint)
    keys = _keys_of_file(credentials_file) if credentials_file else environment
    access, secret = keys.get("AWS_ACCESS_KEY_ID", ""), keys.get("AWS_SECRET_ACCESS_KEY", "")
    if bool(access) != bool(secret) or (endpoint and not access):
        raise ValueError(
            "TRAINYARD_LAKE needs credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a file with"
            " TRAINYARD_S3_CREDENTIALS."
        )
    token = keys.get("AWS_SESSION_TOKEN", "")
    return BucketConfig(parts.netloc, prefix, endpoint.rstrip("/"), region, access, secret, token)


def inner_addresses(endpoint: str) -> list[str]:
    """Return the addresses of an endpoint's host that are in the control plane's own network: loopback, link-local,
    private and other addresses that the internet does not route. A name that does not resolve has none."""
    parts = urlsplit(endpoint)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        # An unresolvable name is reported by the first request, with a message of its own.
        return []
    addresses = sorted({str(entry[4][0]).partition("%")[0] for entry in found})
    return [address for address in addresses if not _is_global(address)]


def why_inside(endpoint: str) -> str:
    """Return words that say at which inner addresses an endpoint is (see `inner_addresses`); "" if it has none."""
    inside = inner_addresses(endpoint) if endpoint else []
    return f"{endpoint} points into the control plane's own network: {', '.join(inside)}" if inside else ""


def _is_global(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_global


def _check_endpoint(endpoint: str) -> None:
    if not endpoint:
        return
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
        raise ValueError(
            "TRAINYARD_S3_ENDPOINT is like https://s3.example.org:9000, without a name or password."
        )


def _keys_of_file(path: str) -> dict[str, str]:
    """Return the keys of the profile `default`, under the names of the environment variables. Raises ValueError if
    the file has none."""
    try:
        section = default_section(path)
    except SectionUnreadable as error:
        raise ValueError(f"TRAINYARD_S3_CREDENTIALS: {error}") from None
    return {name.upper(): value for name, value in section.items()}
