"""Numbers and times as people read them; tests/browser asks the browser the same."""

import pytest

from dashboards import formats
from tests.browser.samples import DURATIONS, FIGURES, MEBIBYTES, NUMBERS, PERCENTS, PROGRESS


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


def test_ago():
    assert (formats.ago(3), formats.ago(65)) == ("just now", "1\u00a0m 5\u00a0s ago")
