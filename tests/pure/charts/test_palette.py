"""The colours of charts are the colours of the pages, readable on their surface and apart for every eye."""

import itertools
import re
from pathlib import Path

import pytest

from dashboards.charts.palette import DARK, LIGHT, Palette

TOKENS = Path(__file__).parents[3] / "static" / "css" / "tokens.css"
# sRGB (linear) as seen without the green and without the red cones: Machado, Oliveira, Fernandes 2009, severity 1
EYES = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no green cones": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "no red cones": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
}
FIRST_FOUR = 4  # chosen for us; they are closer than the ones we chose


def tokens(theme: str) -> dict[str, str]:
    light, dark = TOKENS.read_text().split(':root[data-theme="dark"]')
    text = light if theme == "light" else dark
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))


def linear(colour: str) -> tuple[float, ...]:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return tuple(
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels
    )


def luminance(colour: str) -> float:
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    red, green, blue = (min(1.0, max(0.0, value)) for value in rgb)
    xyz = (
        (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047,
        0.2126729 * red + 0.7151522 * green + 0.072175 * blue,
        (0.0193339 * red + 0.119192 * green + 0.9503041 * blue) / 1.08883,
    )
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, eye: tuple[tuple[float, ...], ...]) -> float:
    seen = []
    for colour in (one, other):
        rgb = linear(colour)
        seen.append(
            lab(tuple(sum(part * value for part, value in zip(row, rgb, strict=True)) for row in eye))
        )
    return sum((a - b) ** 2 for a, b in zip(*seen, strict=True)) ** 0.5


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_charts_and_pages_share_their_colours(theme: str, palette: Palette):
    page = tokens(theme)
    assert [page[f"project-{index}"] for index in range(12)] == list(palette.projects)
    named = {"surface": "surface", "line-faint": "line", "text": "text", "second": "second", "third": "third"}
    named |= {"accent": "accent", "good": "good", "warning": "warning"}
    assert {name: page[name] for name in named} == {
        name: getattr(palette, field) for name, field in named.items()
    }


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_its_contrast_on_every_surface(theme: str):
    page = tokens(theme)
    for text in ("text", "second", "third", "accent", "good", "warning", "bad"):
        assert contrast(page[text], page["surface"]) >= 4.5, text
    for wash in ("good", "warning", "bad", "accent"):
        assert contrast(page[wash], page[f"{wash}-wash"]) >= 4.5, wash


@pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT), ("dark", DARK)])
def test_project_marks_stand_out_from_the_surface(theme: str, palette: Palette):
    assert {colour for colour in palette.projects if contrast(colour, tokens(theme)["surface"]) < 3} == set()


@pytest.mark.parametrize("eye", EYES)
@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_projects_can_be_told_apart(palette: Palette, eye: str):
    pairs = [pair for pair in itertools.combinations(range(12), 2) if pair[1] >= FIRST_FOUR]
    close = [
        (one, other, round(found, 1))
        for one, other in pairs
        if (found := distance(palette.projects[one], palette.projects[other], EYES[eye])) < 9
    ]
    assert close == []
