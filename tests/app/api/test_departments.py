"""Departments over REST: parents of projects, with a share of their own."""

from collections.abc import Callable

import pytest

from controlplane.models import AuditEntry
from tests.app.api.client import Api
from tests.cast import Cast

pytestmark = pytest.mark.django_db

AsPerson = Callable[[str], Api]


def test_a_department_is_made_edited_filled_emptied_and_deleted(api: AsPerson, cast: Cast):
    root = api("root")
    made = root.post("departments", {"name": "sales", "gpu_quota": 4, "gpu_limit": 8, "priority": 2})
    assert made.status == 201
    assert made.body | {"created_at": None} == {
        "name": "sales",
        "gpu_quota": 4,
        "over_quota_weight": None,
        "gpu_limit": 8,
        "priority": 2,
        "created_at": None,
        "projects": [],
    }
    assert root.post("departments", {"name": "sales"}).code == "name_taken"
    changed = root.patch(
        "departments/sales", {"gpu_quota": 0.5, "over_quota_weight": 1, "gpu_limit": None}
    ).body
    assert (changed["gpu_quota"], changed["over_quota_weight"], changed["gpu_limit"]) == (0.5, 1, None)
    assert root.patch("projects/team-a", {"department": "sales"}).body["department"] == "sales"
    assert root.get("departments/sales").body["projects"] == ["team-a"]
    assert root.delete("departments/sales").code == "department_in_use"
    root.patch("projects/team-a", {"department": None})
    assert root.delete("departments/sales").status == 204
    assert root.get("departments/sales").status == 404
    verbs = AuditEntry.objects.filter(object_name="sales").order_by("pk").values_list("verb", flat=True)
    assert list(verbs) == ["department.create", "department.edit", "department.delete"]


def test_an_unknown_department_is_named_and_what_exists_is_listed(api: AsPerson, cast: Cast):
    assert api("root").patch("projects/team-a", {"department": "moon"}).pointers == ["/department"]
    assert [row["name"] for row in api("chi").get("departments").body["results"]] == ["research"]


def test_an_edit_of_what_has_changed_meanwhile_is_refused(api: AsPerson, cast: Cast):
    root = api("root")
    tag = root.get("departments/research").headers["ETag"]
    assert root.patch("departments/research", {"gpu_quota": 2}, If_Match=tag).status == 200
    assert root.patch("departments/research", {"gpu_quota": 3}, If_Match=tag).status == 412
