"""Asking first: a page that says what a verb will do before it does it. GET asks, POST to the same address acts.

static/js/ask.js shows the page as a dialog where scripts run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _

from controlplane.access import Actor
from dashboards.pages.base_page import show


@dataclass(frozen=True, slots=True)
class Named:
    """An object that a question names: its page and what is to be said of it."""

    label: str
    url: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """What will happen, in sentences, and to what; `do` is the label of the button that does it, "" for a page that
    only reports. `fields` are sent with the answer."""

    title: str
    sentences: Sequence[str]
    back: str
    do: str = ""
    is_destructive: bool = True
    fields: Sequence[tuple[str, str]] = ()
    groups: Sequence[tuple[str, Sequence[Named]]] = ()


def ask(request: HttpRequest, actor: Actor, question: Question) -> HttpResponse:
    """Render the question; its form posts to the page's own address."""
    keep = _("Cancel") if question.do else _("Back")
    return show(request, actor, "dashboards/ask.html", {"question": question, "keep": keep})
