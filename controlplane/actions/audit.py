"""The audit log: one row per change, written in the transaction of the change."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django.db import models

from controlplane.access import Actor
from controlplane.models import AuditEntry
from controlplane.models.bulk_insert import insert_rows

_lasting: ContextVar[list[AuditEntry] | None] = ContextVar("lasting_audit", default=None)


def write_audit(
    actor: Actor,
    verb: str,
    object_type: str,
    object_name: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Write one audit row in the caller's transaction: the actor did `verb` to an object, with its values before and
    after. Never pass secrets. Does nothing for the control plane itself (`actor.user` None), whose work is recorded
    as events."""
    if actor.user is not None:
        _entry(actor, verb, object_type, object_name, before=before or {}, after=after or {}).save()


def write_audits(actor: Actor, verb: str, object_type: str, after: Mapping[str, dict[str, Any]]) -> None:
    """Write one audit row per object in one statement, under the rules of `write_audit`. `after`: new values by
    object name."""
    if actor.user is not None:
        insert_rows(_entry(actor, verb, object_type, name, after=values) for name, values in after.items())


def write_lasting_audit(
    actor: Actor, verb: str, object_type: str, object_name: str, *, after: dict[str, Any]
) -> None:
    """Write an audit row that survives a rollback, because even a dry run must leave a trace, such as a search for a
    user. It survives only inside a `lasting_audit` block; elsewhere it is rolled back with the caller's transaction."""
    if actor.user is None:
        return
    entry, waiting = _entry(actor, verb, object_type, object_name, after=after), _lasting.get()
    if waiting is None:
        entry.save()
    else:
        waiting.append(entry)


@contextmanager
def lasting_audit() -> Iterator[None]:
    """Collect the rows of `write_lasting_audit` and save them when the block ends, also by an exception. Enter it
    outside transactions."""
    waiting: list[AuditEntry] = []
    reset = _lasting.set(waiting)
    try:
        yield
    finally:
        _lasting.reset(reset)
        if waiting:
            AuditEntry.objects.bulk_create(waiting)


def write_fields(row: models.Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """Set the `values` on a row and save these fields. Return their earlier values by field name, for an audit row."""
    before = {name: getattr(row, name) for name in values}
    for name, value in values.items():
        setattr(row, name, value)
    row.save(update_fields=list(values))
    return before


def _entry(
    actor: Actor, verb: str, object_type: str, object_name: str, **values: dict[str, Any]
) -> AuditEntry:
    return AuditEntry(
        actor=actor.name,
        token_prefix=actor.token_prefix,
        address=actor.address,
        request_id=actor.request_id,
        verb=verb,
        object_type=object_type,
        object_name=object_name,
        **values,
    )
