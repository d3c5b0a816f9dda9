"""Actions on departments: create, edit, delete. A project is assigned to a department by editing the project."""

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from controlplane.access import Actor, require_admin
from controlplane.actions.audit import write_audit, write_fields
from controlplane.actions.errors import Conflict
from controlplane.actions.events import announce
from controlplane.models import Department, Event


def create_department(fields: Mapping[str, Any], *, actor: Actor) -> Department:
    """Create a department from validated model fields. Raise Forbidden unless the actor is an admin, Conflict if the
    name is taken."""
    require_admin(actor)
    try:
        with transaction.atomic():
            department = Department.objects.create(**fields)
            _happened("create", department, actor, after=department.share_values())
    except IntegrityError as error:
        raise Conflict("name_taken", f"There is a department named {fields['name']} already.") from error
    return department


def edit_department(department: Department, changes: Mapping[str, Any], *, actor: Actor) -> Department:
    """Change the department's quota, weight, limit or priority. `changes`: validated values by model field. Raise
    Forbidden unless the actor is an admin."""
    require_admin(actor)
    before = department.share_values()
    with transaction.atomic():
        write_fields(department, changes)
        _happened("edit", department, actor, before=before, after=department.share_values())
    return department


def delete_department(department: Department, *, actor: Actor) -> None:
    """Delete a department. Raise Forbidden unless the actor is an admin, Conflict while projects are in it."""
    require_admin(actor)
    with transaction.atomic():
        names = list(department.projects.order_by("name").values_list("name", flat=True))
        if names:
            held = ", ".join(names[:5])
            raise Conflict(
                "department_in_use", f"{department.name} has projects ({held}); take them out first."
            )
        _happened("delete", department, actor, before=department.share_values())
        department.delete()


def _happened(verb: str, department: Department, actor: Actor, **values: dict[str, Any]) -> None:
    write_audit(actor, f"department.{verb}", "department", department.name, **values)
    kind = f"department.{verb.removesuffix('e')}ed"
    announce(Event(kind=kind, actor=actor.name, message=department.name))
