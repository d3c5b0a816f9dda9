"""What pages load: the overview nothing that only other pages need, and every page the texts of its scripts."""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.test import Client

from dashboards.pages import js_messages
from tests.cast import Cast

STATIC = Path(settings.BASE_DIR, "static")
TEMPLATES = [Path(settings.BASE_DIR, app, "templates") for app in ("dashboards", "datasets")]
# Those of every page, and those that draw charts.
OVERVIEW = {
    *(f"css/{name}.css" for name in ("tokens", "base", "layout", "components", "lines", "charts")),
    *("js/theme.js", "js/app.js", "js/live-charts.js"),
    *(
        f"js/{name}.js"
        for name in ("ask", "dom", "format", "hover", "keys", "live", "nav", "palette", "regions", "table")
    ),
    *(
        f"js/{name}.js"
        for name in ("bisect", "charts", "chart-hover", "chart-labels", "chart-tools", "chart-words")
    ),
}
# What only some pages need goes into files of their own.
OVERVIEW_KIB = 40


def with_imports(scripts: set[str]) -> set[str]:
    """Return the names of these scripts and of all that they import when they are loaded."""
    found: set[str] = set()
    while scripts - found:
        name = min(scripts - found)
        found.add(name)
        text = (STATIC / name).read_text()
        scripts |= {
            f"js/{other}" for other in re.findall(r'^import (?:.* from )?"\./(.*?)";', text, re.MULTILINE)
        }
    return found


def said(scripts: set[str]) -> Iterator[str]:
    """Yield the keys of the texts that these scripts name."""
    for name in scripts:
        yield from re.findall(r'\bsay\("(\w+)"', (STATIC / name).read_text())


def page_templates() -> Iterator[tuple[str, str]]:
    """Yield the path of each template that names scripts, and its text with that of the template it extends."""
    for root in TEMPLATES:
        for path in root.rglob("*.html"):
            text = path.read_text()
            if "js/" in text and (is_of := re.search(r'{% extends "(.*?)"', text)):
                parents = (parent / is_of[1] for parent in TEMPLATES)
                yield str(path.relative_to(root)), text + next(p.read_text() for p in parents if p.exists())


@pytest.fixture
def overview(client: Client, cast: Cast) -> str:
    client.force_login(cast.root)
    return client.get("/").content.decode()


def test_the_overview_loads_what_it_needs_alone(overview: str):
    named = set(re.findall(r'(?:src|href)="/static/([\w/-]+\.(?:js|css))"', overview))
    loaded = with_imports({name for name in named if name.endswith(".js")}) | named
    assert loaded == OVERVIEW
    sent = sum(len(gzip.compress((STATIC / name).read_bytes())) for name in loaded)
    assert sent <= OVERVIEW_KIB * 1024


def test_the_overview_has_no_texts_of_other_pages(overview: str):
    assert re.findall(r'<script id="(words[\w-]*)"', overview) == ["words"]
    everywhere = with_imports(OVERVIEW & {"js/app.js", "js/charts.js"})
    others = {name for part in ("logs", "shell", "uploads") for name in js_messages.words_of(part)}
    assert others.isdisjoint(js_messages.words())
    assert others.isdisjoint(said(everywhere))


@pytest.mark.parametrize(("name", "text"), list(page_templates()))
def test_a_page_has_the_texts_of_its_scripts(name: str, text: str):
    scripts = with_imports({"js/app.js", *re.findall(r"{% static '(js/[\w-]+\.js)' %}", text)})
    parts = re.findall(r'{% words "(\w+)" %}', text)
    known = js_messages.words() | {
        key: word for part in parts for key, word in js_messages.words_of(part).items()
    }
    assert set(said(scripts)) <= known.keys()
    for part in parts:
        assert not set(js_messages.words_of(part)).isdisjoint(said(scripts)), (
            f"no script of {name} says {part}"
        )
