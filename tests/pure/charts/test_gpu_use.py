"""The scale of a GPU's utilisation, and the tag that draws it."""

import re

import pytest

from dashboards.gpu_use import LOOKS, Use, use_of
from dashboards.templatetags.ui import gpu_use


@pytest.mark.parametrize(
    ("share", "is_held", "use"),
    [
        (None, True, Use.UNKNOWN),
        (0.0, False, Use.FREE),
        (0.0, True, Use.IDLE),
        (0.004, True, Use.LOW),
        (0.01, True, Use.LOW),
        (0.2, True, Use.LOW),
        (0.5, True, Use.LOW),
        (0.51, True, Use.BUSY),
        (1.0, True, Use.BUSY),
    ],
)
def test_the_scale(share: float | None, is_held: bool, use: Use) -> None:
    assert use_of(share, is_held=is_held) is use


def test_every_step_has_a_word_and_only_busy_is_green() -> None:
    assert LOOKS.keys() == set(Use)
    assert [use for use, look in LOOKS.items() if look.colour == "good"] == [Use.BUSY]


@pytest.mark.parametrize(
    ("share", "is_held", "classes", "words"),
    [
        (0.0, True, "meter short warning idle", "0\u00a0% idle"),
        (0.2, True, "meter short warning low", "20\u00a0% low"),
        (0.97, True, "meter short good busy", "97\u00a0%"),
        (0.0, False, "meter short  free", "0\u00a0%"),
    ],
)
def test_colour_and_words_agree(share: float, is_held: bool, classes: str, words: str) -> None:
    markup = str(gpu_use(share, is_held))
    assert f'class="{classes}"' in markup
    assert re.sub("<[^>]+>", "", markup) == words


def test_what_nothing_measures_is_a_dash() -> None:
    assert gpu_use(None) == "–"
