"""The client's address behind reverse proxies, and the key by which limits identify it."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def client_address(peer: str, forwarded: Sequence[str], trusted: Sequence[Network]) -> str:
    """Return the address of the client whose request `peer` sent. `forwarded`: the X-Forwarded-For headers in order;
    `trusted`: the networks of reverse proxies.

    A proxy appends the address from which it received the request, and a client may send any text before that. So
    entries are read from the end, up to the first address that is not a trusted proxy.
    """
    client = _address(peer)
    if client is None or not _is_trusted(client, trusted):
        return peer
    for text in reversed(",".join(forwarded).split(",")):
        before = _address(text)
        if before is None:
            break
        client = before
        if not _is_trusted(client, trusted):
            break
    return str(client)


def address_key(client: tuple[str, int] | None) -> str:
    """Return the key under which a client's limits are counted: its IPv4 address, or the /64 network of its IPv6
    address. An IPv4-mapped address counts as IPv4. `client`: (address, port); "" for None, an unknown client."""
    host = client[0] if client else ""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)


def _address(text: str) -> Address | None:
    """Return the address in `text`, with or without a port; None if there is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_trusted(address: Address, trusted: Sequence[Network]) -> bool:
    return any(address in network for network in trusted)
