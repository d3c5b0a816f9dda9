"""A tone, which is a CSS class, has a rule in the style sheets: without one, a failure looks like all else."""

import re
from importlib import import_module

import pytest

from tests.house.sources import ROOT

STYLES = "\n".join(path.read_text() for path in sorted((ROOT / "static/css").glob("*.css")))
# Look as they are without a tone.
PLAIN = {"", "second", "plain", "info"}
TEMPLATES = sorted(path for path in ROOT.glob("*/templates/**/*.html"))


def unstyled(part: str, tones: set[str]) -> list[str]:
    return sorted(tone for tone in tones - PLAIN if not re.search(rf"\.{part}\.{tone}(?![\w-])", STYLES))


def test_badges_have_the_colour_of_their_tone():
    volumes = import_module("datasets.pages.volume_lists").TONES
    artifacts = import_module("datasets.pages.artifacts").LOOKS
    caches = import_module("datasets.templatetags.data").LOOKS
    tones = {
        *volumes.values(),
        *(look[0] for look in artifacts.values()),
        *(look[1] for look in caches.values()),
    }
    assert unstyled("badge", tones) == []


@pytest.mark.parametrize("share", [0.0, 0.95, 1.0, 2.0])
def test_a_full_volume_has_a_bar_of_another_colour(share: float):
    tone = import_module("datasets.pages.volume_lists").fullness(share)
    assert tone == {0.0: "", 0.95: "warning", 1.0: "warning", 2.0: "bad"}[share]
    assert unstyled("meter", {tone}) == []


def test_messages_have_the_colour_of_their_tone():
    words = re.compile(r'class="message ([^"]*)"')
    markup = "\n".join(path.read_text() for path in TEMPLATES)
    tones = {
        word for found in words.findall(markup) for word in re.sub(r"{{.*?}}|{%.*?%}", " ", found).split()
    }
    assert unstyled("message", tones) == []


def test_meters_are_drawn_with_known_tones():
    code = "\n".join(path.read_text() for path in sorted(ROOT.glob("datasets/pages/*.py")))
    assert unstyled("meter", {*re.findall(r'meter\(\w+, "(\w+)"', code)}) == []
