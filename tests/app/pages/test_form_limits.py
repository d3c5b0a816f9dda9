"""The submit form reads no field that is too long, and nothing for who may submit nowhere."""

import pytest

from dashboards.pages import job_form
from jobs.fields.declaration import LONG, SHORT
from tests.app.pages.conftest import Visit, Yard

FORM = {"project": "team-a", "name": "new", "kind": "train", "image": "quickstart", "gpus": "1"}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("command", "x" * (LONG + 1)),  # 400 KB took 7 s to split
        ("env", "A=" + "x" * LONG),
        ("ports", "1," * LONG),
        ("max_runtime_seconds", "1h" * SHORT),
        ("name", "x" * 400_000),
    ],
)
def test_a_long_field_is_refused_unread(yard: Yard, visit: Visit, monkeypatch, field, text):
    read = []
    parse = job_form.parse_text
    monkeypatch.setattr(
        job_form, "parse_text", lambda value, text: read.append(len(text)) or parse(value, text)
    )
    preview = visit(yard.cast.ana).post("/new/job/preview.json", FORM | {field: text}).json()
    assert "At most" in preview["errors"][field]
    assert read
    assert all(size <= LONG for size in read)


def test_nothing_is_read_for_who_may_submit_nowhere(yard: Yard, visit: Visit, monkeypatch):
    monkeypatch.setattr(job_form, "read_body", lambda raw: pytest.fail("read before rights"))
    preview = visit(yard.cast.vera).post("/new/job/preview.json", FORM | {"command": "x y"}).json()
    assert list(preview["errors"]) == ["project"]
