"""No page offers what its reader may not do: every link and form of every page is tried."""

import html
import re
from collections.abc import Iterator

import pytest
from django.db import transaction

from tests.app.pages.conftest import Visit, Yard

PEOPLE = ("root", "ana", "ben", "vera", "chi")  # admin, owner, member, viewer, stranger
PAGES = (
    *("/", "/jobs", "/new/job", "/projects", "/nodes", "/users", "/tokens", "/analytics", "/clusters"),
    *("/projects/team-a", "/projects/team-b", "/nodes/dgx1-1", "/clusters/memory"),
    *("/users/ana", "/users/chi", "/users/vera"),
    *("/jobs/{running}", "/jobs/{queued}", "/jobs/{finished}", "/jobs/{running}/pods"),
)


@pytest.mark.parametrize("person", PEOPLE)
def test_no_page_offers_what_its_reader_may_not_do(yard: Yard, visit: Visit, person: str):
    client = visit(getattr(yard.cast, person))
    offered: dict[tuple[str, str], str] = {}
    found = set()
    for path in PAGES:
        here = path.format(running=yard.running.pk, queued=yard.queued.pk, finished=yard.finished.pk)
        answer = client.get(here)
        if answer.status_code == 200:
            found.add(("get", here))
            offered |= dict.fromkeys(offers(answer.content.decode(), here), path)
    refused = {}
    for (method, address), path in offered.items():
        if (method, address) in found:
            continue
        with transaction.atomic():  # each from the same start
            answer = getattr(client, method)(address)
            transaction.set_rollback(True)
        if answer.status_code == 403 or (method == "get" and answer.status_code == 404):
            refused[address] = (path, answer.status_code)
    assert len(offered) > 10
    assert refused == {}


def offers(page: str, here: str) -> Iterator[tuple[str, str]]:
    """The methods and addresses of a page's links and forms, but those of templates and of signing out."""
    page = re.sub(r"<template.*?</template>", "", page, flags=re.DOTALL)
    for address in re.findall(r'<a [^>]*href="(/[^"#]*)"', page):
        if not address.startswith(("/static/", "/services/")):
            yield "get", html.unescape(address)
    for tag in re.findall(r"<form [^>]*>", page):
        method, action = re.search(r'method="(\w+)"', tag), re.search(r'action="([^"]*)"', tag)
        address = html.unescape(action[1]) if action else here
        # nothing selected is a bad request, which is no refusal of the reader
        if method and address != "/logout":
            yield method[1], address
