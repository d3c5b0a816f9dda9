"""How large a job's spec may be, and a page of a list."""

from urllib.parse import urlsplit

import orjson
import pytest

from controlplane.api import paging
from jobs.kinds.spec import SPEC_MOST_BYTES, SpecInvalid, parse_spec
from jobs.models import Job
from tests.builders import make_job

pytestmark = pytest.mark.django_db
SPEC = {"name": "big", "kind": "train", "gpus": 0, "command": ["true"]}
VALUE = "x" * 20_000


def test_a_spec_has_at_most_64_kib_and_the_largest_field_is_named(api):
    env = {"A": VALUE, "B": VALUE, "C": VALUE, "D": VALUE}
    reply = api("ben").post("projects/team-a/jobs", SPEC | {"env": env})
    assert (reply.status, reply.pointers) == (400, ["/env"])
    assert reply.body["errors"][0]["code"] == "spec_too_large"
    assert "in env; at most 65536 in all" in reply.body["errors"][0]["detail"]
    assert not Job.objects.filter(name="big").exists()


def test_the_limit_counts_what_is_stored():
    base = len(orjson.dumps(parse_spec(SPEC)))
    room = SPEC_MOST_BYTES - base - 1000
    half = room // 2
    parse_spec(SPEC | {"args": ["x" * half, "é" * (half // 2)]})
    with pytest.raises(SpecInvalid, match="in args"):
        parse_spec(SPEC | {"args": ["x" * half, "é" * (half // 2), "x" * 2000]})


def test_a_page_of_large_items_ends_early_and_goes_on(api, cast, monkeypatch):
    """60 clones of a 1 MB spec made a page of 57 MiB."""
    monkeypatch.setattr(paging, "PAGE_MOST_BYTES", 100_000)
    names = [f"job{number}" for number in range(7)]
    for name in names:
        make_job(cast.project, name, cast.ben, gpus=0, env={"A": VALUE, "B": VALUE})
    seen, path, sizes, pages = [], "jobs?ordering=created_at&limit=50", [], []
    while path:
        reply = api("ben").get(path)
        assert reply.status == 200
        sizes.append(len(orjson.dumps(reply.body["results"])))
        seen += [item["name"] for item in reply.body["results"]]
        pages.append(reply.body)
        path = relative(reply.body["next"])
    assert seen == names
    assert len(sizes) == 4
    assert max(sizes) < 110_000
    back = api("ben").get(relative(pages[-1]["previous"])).body
    assert [item["name"] for item in back["results"]] == names[4:6]
    assert None not in (back["previous"], back["next"])


def relative(link: str | None) -> str | None:
    return (
        None
        if link is None
        else urlsplit(link)._replace(scheme="", netloc="").geturl().removeprefix("/api/v1/")
    )


def test_an_item_larger_than_a_page_is_a_page(api, cast, monkeypatch):
    monkeypatch.setattr(paging, "PAGE_MOST_BYTES", 100)
    for name in ("one", "two"):
        make_job(cast.project, name, cast.ben, gpus=0)
    first = api("ben").get("jobs?ordering=created_at").body
    assert [item["name"] for item in first["results"]] == ["one"]
    second = api("ben").get(relative(first["next"])).body
    assert ([item["name"] for item in second["results"]], second["next"]) == (["two"], None)
