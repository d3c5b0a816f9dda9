"""Numbers and times as people read them; tests/browser asks the browser the same."""

import pytest

from dashboards import formats
from tests.browser.samples import AGES, DURATIONS, FIGURES, MEBIBYTES, NUMBERS, PERCENTS, PROGRESS


@pytest.mark.parametrize(("value", "text"), NUMBERS)
def test_number(value: float | None, text: str):
    assert formats.number(value) == text


@pytest.mark.parametrize(("value", "text"), PERCENTS)
def test_percent(value: float | None, text: str):
    assert formats.percent(value) == text


@pytest.mark.parametrize(("value", "text"), MEBIBYTES)
def test_mebibytes(value: float | None, text: str):
    assert formats.mebibytes(value) == text


@pytest.mark.parametrize(("value", "text"), DURATIONS)
def test_duration(value: float | None, text: str):
    assert formats.duration(value) == text


@pytest.mark.parametrize(("value", "text"), FIGURES)
def test_figure(value: float | None, text: str):
    assert formats.figure(value) == text


@pytest.mark.parametrize(("value", "share"), PROGRESS)
def test_fraction(value: object, share: float | None):
    assert formats.fraction(value) == share


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_ago(seconds: float, text: str):
    assert formats.ago(seconds) == text


def test_a_column_of_numbers_has_its_points_below_one_another() -> None:
    values = [1234, 0.5, None, 0.125, 2]
    column = formats.decimals(values)
    assert column == 3
    written = [formats.number(value, column) for value in values]
    assert [text.rstrip() for text in written] == ["1,234", "0.5", "–", "0.125", "2"]
    assert [
        len(text.partition(".")[2] or text.partition("\u2008")[2]) for text in written if "–" not in text
    ] == [3] * 4
    assert formats.lined_up([formats.number(value) for value in values]) == written
    assert formats.number(16, formats.decimals([1, 2])) == "16"
    assert formats.decimals([]) == 0
    assert formats.lined_up(["2 m 10 s", "<b>0.5</b>", "7"]) == ["2 m 10 s", "<b>0.5</b>", "7"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((None, "–"), (0, "0.00"), (0.0001, "<0.01"), (0.00965, "0.01"), (0.357, "0.36"), (12.5, "12.50")),
        *((99.999, "100.00"), (123.456, "123.5"), (1234.5, "1,234"), (1235.5, "1,236")),
    ],
)
def test_what_is_measured_has_the_decimals_of_its_size(value: float | None, text: str) -> None:
    assert formats.measured(value) == text


def test_a_column_of_measured_values_has_the_decimals_of_its_largest() -> None:
    values = [1234.5, 0.00965, 0.0, None]
    column = formats.measured_decimals(values)
    assert [formats.measured(value, column) for value in values] == ["1,234", "<1", "0", "–"]
