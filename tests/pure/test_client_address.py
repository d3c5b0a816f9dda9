"""Whose request it is behind proxies: what trusted ones appended counts, and nothing else."""

import ipaddress

import pytest

from controlplane.http.client_address import client_address

TRUSTED = [ipaddress.ip_network(network) for network in ("127.0.0.1", "10.1.0.0/16", "fd00::/8")]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("203.0.113.9", [], "203.0.113.9"),
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.1"], "198.51.100.1"),
        ("10.1.2.3", ["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
        ("10.1.2.3", ["1.1.1.1, 198.51.100.1, 10.1.9.9"], "198.51.100.1"),
        ("10.1.2.3", ["1.1.1.1", "198.51.100.1 , 127.0.0.1"], "198.51.100.1"),
        ("10.1.2.3", ["10.1.7.7, 10.1.8.8"], "10.1.7.7"),
        ("10.1.2.3", ["198.51.100.1, nonsense"], "10.1.2.3"),
        ("10.1.2.3", ["198.51.100.1:4711"], "198.51.100.1"),
        ("fd00::1", ["[2001:db8::7]:443"], "2001:db8::7"),
        ("fd00::1", ["2001:db8::7"], "2001:db8::7"),
        ("::ffff:10.1.2.3", ["198.51.100.1"], "198.51.100.1"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_clients_address(peer: str, forwarded: list[str], client: str):
    assert client_address(peer, forwarded, TRUSTED) == client


def test_without_trusted_proxies_the_header_is_ignored():
    assert client_address("127.0.0.1", ["198.51.100.1"], []) == "127.0.0.1"
