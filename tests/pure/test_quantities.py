"""Amounts in words."""

import pytest

from controlplane.clusters.quantities import in_words


@pytest.mark.parametrize(
    ("resource", "number", "words"),
    [
        ("vpc.amazonaws.com/efa", 4, "4 vpc.amazonaws.com/efa"),
        ("hugepages-2Mi", 512 * 2**20, "512 MiB of hugepages-2Mi"),
        ("ephemeral-storage", 95 * 10**9, "88.5 GiB of ephemeral-storage"),
        ("ephemeral-storage", 28 * 10**12, "25.5 TiB of ephemeral-storage"),
    ],
)
def test_amounts_are_written_as_people_read_them(resource: str, number: int, words: str):
    assert in_words(resource, number) == words
