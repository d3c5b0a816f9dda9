"""Errors of forms are announced: the first refused field has the focus, and each names its error as its description."""

import re
from pathlib import Path
from typing import Any

import pytest

from controlplane.actions.errors import invalid
from datasets.actions.caches import location_for
from tests.app.pages.conftest import Visit
from tests.cast import Cast
from tests.datasets import make_dataset, make_version

pytestmark = pytest.mark.django_db
LOCATION = {"name": "fast", "cluster": "memory", "unused_days": "1"}


@pytest.mark.parametrize(
    ("path", "form", "refused"),
    [
        ("/new/dataset", {"name": "A b", "project": "team-a"}, {"name"}),
        ("/datasets/{dataset}/edit", {"description": "x" * 501}, {"description"}),
        ("/datasets/{dataset}/tags", {"name": "A b", "version": "9"}, {"name", "version"}),
        ("/datasets/{dataset}/subset", {"name": "A b", "version": "1"}, {"name", "include"}),
        ("/new/volume", {"name": "data", "project": "team-a", "size": "much"}, {"size"}),
        ("/new/cache-location", LOCATION | {"node_pools": "none"}, {"node_pools"}),
        (
            "/new/cache-location",
            LOCATION | {"unused_days": "0", "node_labels": "b"},
            {"unused_days", "node_labels"},
        ),
        ("/cache-locations/memory/edit", {"room_bytes": "much", "unused_days": "1"}, {"room_bytes"}),
        ("/new/project", {"name": "A b", "cluster": "memory"}, {"name"}),
    ],
)
def test_a_refused_field_has_the_focus_and_its_error_as_description(
    cast: Cast, visit: Visit, own_lakes: Path, path: str, form: dict[str, str], refused: set[str]
):
    dataset = make_dataset(cast.project)
    make_version(dataset, {"a": "one"})
    location_for(cast.project.cluster)
    answer = visit(cast.root).post(path.format(dataset=dataset.pk), form)
    page = answer.content.decode()
    assert answer.status_code == 400
    errors = set(re.findall(r'<span class="error" id="id_(\w+)_error"', page))
    assert errors >= refused
    for name in errors:
        described = re.findall(rf'<[^>]*aria-describedby="[^"]*\bid_{name}_error\b[^"]*"[^>]*>', page)
        assert len(described) == 1, name
    for described in re.findall(r'aria-describedby="([^"]*)"', page):
        assert all(f'id="{one}"' in page for one in described.split()), described
    invalid = re.findall(r"<[^>]*aria-invalid[^>]*>", page)
    assert invalid
    assert all("autofocus" in field for field in invalid)


def test_an_error_of_no_field_is_shown_and_spoken(cast: Cast, visit: Visit, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise invalid("/quota", "over_quota", "The storage of team-a is full.")

    monkeypatch.setattr("datasets.pages.dataset_forms.create_dataset", refuse)
    answer = visit(cast.root).post("/new/dataset", {"name": "xray", "project": "team-a"})
    assert answer.status_code == 400
    assert '<p class="bad" data-spoken>The storage of team-a is full.</p>' in answer.content.decode()
