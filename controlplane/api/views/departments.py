"""Departments: groups of projects with a share of their own."""

from typing import Any

from controlplane.access import NotVisible, require_admin
from controlplane.actions.departments import create_department, delete_department, edit_department
from controlplane.api.bodies import label_field
from controlplane.api.json_schema import ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.paging import Listing, fields_parameter, paged, trimmed
from controlplane.api.schemas import DEPARTMENT
from controlplane.api.views.projects import SHARE_COLUMNS, SHARE_FIELDS
from controlplane.models import Department
from controlplane.queries.projects import department_rows

NEW_DEPARTMENT = {
    "name": label_field(50, is_required=True),
    **SHARE_FIELDS,
}
DEPARTMENTS = Listing(DEPARTMENT, {"name": ("name",), "created_at": ("created_at", "id")}, "name", {})


class Departments(ApiView):
    """Departments, the parents of projects. Every user may read them; admins may create one."""

    @DEPARTMENTS.operation("List departments", "Department")
    def get(self, call: Call) -> Answer:
        return paged(call, Department.objects.all(), DEPARTMENTS, fetch=list, shape=department_rows)

    @operation("Create a department", answer=ref("Department"), status=201, body=NEW_DEPARTMENT)
    def post(self, call: Call) -> Answer:
        require_admin(call.actor)
        return _answer(call, create_department(_columns(call.body), actor=call.actor), 201)


class DepartmentDetail(ApiView):
    """One department, by name. Every user may read it; admins may edit it, and delete it while it has no projects."""

    @operation("A department", answer=ref("Department"), query={"fields": fields_parameter(DEPARTMENT)})
    def get(self, call: Call, name: str) -> Answer:
        return _answer(call, _department_for(name))

    @operation("Edit a department", answer=ref("Department"), body=SHARE_FIELDS)
    def patch(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        department = call.require_match(_department_for(name), _revision)
        return _answer(call, edit_department(department, _columns(call.body), actor=call.actor))

    @operation("Delete a department without projects", answer={}, status=204)
    def delete(self, call: Call, name: str) -> Answer:
        require_admin(call.actor)
        delete_department(call.require_match(_department_for(name), _revision), actor=call.actor)
        return Answer(None, 204)


def _department_for(name: str) -> Department:
    department = Department.objects.filter(name=name).first()
    if department is None:
        raise NotVisible(f"There is no department named {name!r}.")
    return department


def _answer(call: Call, department: Department, status: int = 200) -> Answer:
    return Answer(trimmed(call, department_rows([department])[0]), status, revision=_revision(department))


def _revision(department: Department) -> Any:
    shown = department_rows([department])[0]
    return {name: value for name, value in shown.items() if name != "projects"}


def _columns(body: dict[str, Any]) -> dict[str, Any]:
    return {SHARE_COLUMNS.get(name, name): value for name, value in body.items()}
