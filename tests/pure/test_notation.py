"""Numbers as people write them, in `yard` and in forms."""

import pytest

from controlplane.notation import parse_number


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
