"""Confirmation pages: GET shows what a verb will do, POST to the same URL does it.

static/js/ask.js shows the page as a dialog if scripts run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.access import Actor
from dashboards.pages.base_page import show


@dataclass(frozen=True, slots=True)
class Named:
    """An object named by a question: its URL and a text about it."""

    label: str
    url: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question: sentences about what will happen, and the affected objects in titled `groups`. `back`: the URL of its
    cancel link. `do`: label of the button, "" for a page that only reports; `is_destructive`: it has the colour of
    danger. `fields`: (name, value) pairs sent with the answer."""

    title: str
    sentences: Sequence[str]
    back: str
    do: str = ""
    is_destructive: bool = True
    fields: Sequence[tuple[str, str]] = ()
    groups: Sequence[tuple[str, Sequence[Named]]] = ()


def ask(request: HttpRequest, actor: Actor, question: Question) -> HttpResponse:
    """Render the question as a page; its form posts the answer to the same URL."""
    keep = _("Cancel") if question.do else _("Back")
    return show(request, actor, "dashboards/ask.html", {"question": question, "keep": keep})
