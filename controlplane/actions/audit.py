"""One audit row for every verb that changes something, written in the verb's own transaction."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from controlplane.access import Actor
from controlplane.models import AuditEntry

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
    """Record who did `verb` to an object, with the values that changed. Secrets never go in.
    What the loop does by itself is in the event log; the audit is about people and their tokens.
    """
    if actor.user is not None:
        _entry(actor, verb, object_type, object_name, before=before or {}, after=after or {}).save()


def write_audits(actor: Actor, verb: str, object_type: str, after: Mapping[str, dict[str, Any]]) -> None:
    """`write_audit` for several objects in one statement; `after`: values by object name."""
    if actor.user is not None:
        AuditEntry.objects.bulk_create(
            _entry(actor, verb, object_type, name, after=values) for name, values in after.items()
        )


def write_lasting_audit(
    actor: Actor, verb: str, object_type: str, object_name: str, *, after: dict[str, Any]
) -> None:
    """`write_audit` for what is done by asking alone, such as a look-up: inside `lasting_audit` the row is kept also
    when the transaction is rolled back, as a dry run's is."""
    if actor.user is None:
        return
    entry, waiting = _entry(actor, verb, object_type, object_name, after=after), _lasting.get()
    if waiting is None:
        entry.save()
    else:
        waiting.append(entry)


@contextmanager
def lasting_audit() -> Iterator[None]:
    """Save the rows of `write_lasting_audit` when the block ends, whatever it raises; open it outside transactions."""
    waiting: list[AuditEntry] = []
    reset = _lasting.set(waiting)
    try:
        yield
    finally:
        _lasting.reset(reset)
        if waiting:
            AuditEntry.objects.bulk_create(waiting)


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
