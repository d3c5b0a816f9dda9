"""Numbers as people write them, in `yard` and in forms."""

import pytest

from controlplane.cli import formats
from controlplane.notation import binary_bytes, decimal_bytes, parse_number
from dashboards import formats as of_pages


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2), ("0.5", 0.5), ("2.0", 2), (" 3 ", 3), ("99999999999999999999", 99999999999999999999)],
)
def test_numbers_keep_their_value(text: str, number: float):
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["nan", "inf", "-infinity", "1e999", "", "two"])
def test_what_is_no_finite_number_is_refused(text: str):
    with pytest.raises(ValueError, match=r"nan|inf|1e999|two|''"):
        parse_number(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (50_592_158, "50.6 MB"),
        (679_737_758, "679 MB"),
        (999_999_999, "999 MB"),
        (1_619_612_736, "1.6 GB"),
        (3_000_000_000_000_000, "3000.0 TB"),
    ],
)
def test_terminal_and_pages_round_a_size_alike(count: int, text: str):
    assert decimal_bytes(count) == formats.size(count) == text
    assert of_pages.size(count).replace("\u00a0", " ").replace(",", "") == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(512, "512 B"), (300 << 20, "300 MiB"), ((200 << 20) + 300_000, "200.3 MiB"), (1536 << 30, "1.5 TiB")],
)
def test_a_size_beside_a_limit_in_binary_units(count: int, text: str):
    assert binary_bytes(count) == formats.binary_size(count) == text
