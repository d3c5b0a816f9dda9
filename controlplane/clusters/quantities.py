"""Kubernetes quantities: `500m`, `64Gi`, `1.5`, `2e3`. No I/O."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

MIB = 1024**2
# Larger than any machine's resources, and still an integer of 64 bits as JSON and database columns require.
MOST = 2**62
_IN_BYTES = ("hugepages-", "ephemeral-storage")
_FACTORS = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12), "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40), "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}  # fmt: skip
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)([numkMGTPE]|[KMGTPE]i)?")


def amount(quantity: object) -> Fraction:
    """Return a Kubernetes quantity in its base unit (CPUs, bytes or pieces), exactly. Raise ValueError if it is no
    quantity."""
    return quantity if isinstance(quantity, Fraction) else _read(str(quantity))


# Cached, because thousands of nodes and pods repeat the same few quantities.
@lru_cache(maxsize=4096)
def _read(text: str) -> Fraction:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:60]!r} is not a quantity.")
    return Fraction(match[1]) * _FACTORS[match[2] or ""]


def whole(quantity: object) -> int:
    """Return a quantity in its base unit, rounded down, as available amounts must be. Raise ValueError if it is no
    quantity."""
    return int(amount(quantity))


def pieces(quantity: object) -> int:
    """Return a quantity in its base unit, rounded up, as requested amounts must be. Raise ValueError if it is no
    quantity."""
    return -int(-amount(quantity) // 1)


def milli(quantity: object) -> int:
    """Return a quantity in thousandths of its base unit, rounded up as kube-scheduler does. Raise ValueError if it
    is no quantity."""
    return -int(-amount(quantity) * 1000 // 1)


def mib(quantity: object) -> int:
    """Return a quantity of bytes in MiB, rounded up. Raise ValueError if it is no quantity."""
    return -int(-amount(quantity) / MIB // 1)


def in_words(resource: str, number: int) -> str:
    """Return an amount for users: `4 vpc.amazonaws.com/efa`, `512 MiB of hugepages-2Mi`. `number` is in bytes for
    huge pages and ephemeral storage, else in pieces."""
    return f"{_bytes(number)} of {resource}" if resource.startswith(_IN_BYTES) else f"{number} {resource}"


def _bytes(number: int) -> str:
    if number >= 2**40:
        return f"{number / 2**40:.1f} TiB"
    return f"{number / 2**30:.1f} GiB" if number >= 10 * 2**30 else f"{number // MIB} MiB"
