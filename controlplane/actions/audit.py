"""One audit row for every verb that changes something, written in the verb's own transaction."""

from collections.abc import Mapping
from typing import Any

from controlplane.access import Actor
from controlplane.models import AuditEntry


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
