"""`yard dataset edit`: what is sent for the options that are given."""

import pytest

from tests.cli.scripted import page

XRAY = {"id": "d1", "name": "xray", "description": "second labelling", "is_shared": True}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        (["--description", "second labelling"], {"description": "second labelling"}),
        (["--description", ""], {"description": ""}),
        (["--shared"], {"is_shared": True}),
        (["--no-shared", "--description", "ours"], {"is_shared": False, "description": "ours"}),
    ],
)
def test_what_is_given_is_sent_and_nothing_else(server, yard, given, sent):
    server.on("GET", "datasets", page(XRAY))
    server.on("PATCH", "datasets/d1", XRAY | sent)
    ran = yard("dataset", "edit", "team-b/xray", *given)
    assert (ran.code, server.asked[-1].body, ran.out) == (0, sent, "dataset xray changed\n")
    assert server.asked[0].query == {"name": "xray", "project": "team-b", "limit": "1"}


def test_without_a_change_and_for_a_version_nothing_is_asked(server, yard):
    for wrong, hint in (["xray"], "yard help dataset edit"), (["xray@3", "--shared"], "leave out @3"):
        ran = yard("dataset", "edit", *wrong)
        assert (ran.code, hint in ran.err) == (2, True)
    assert server.asked == []
