"""Translate the API server's refusals into engine errors that quote the server's message. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.engines.base import (
    ADMISSION_REFUSED,
    CREDENTIALS_REFUSED,
    DEFINITION_MISSING,
    INVALID_POD,
    NAME_TAKEN,
    NAMESPACE_NOT_OURS,
    NO_SUCH_POD,
    NOT_PERMITTED,
    POD_NOT_RUNNING,
    QUOTA_REFUSED,
    EngineRefused,
)
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.errors import ApiError, ApiFailed

LONGEST_WORDS = 400
_QUOTA = re.compile(r"exceeded quota: ([^,]+), requested: (.*), used: (.*), limited: (.*)", re.DOTALL)
_NEEDS_QUOTA = re.compile(r"failed quota: ([^:]+): must specify (.+)", re.DOTALL)
_WEBHOOK = re.compile(
    r'admission webhook "([^"]+)" denied the request(?:: (.*)| without explanation)', re.DOTALL
)
_POLICY = re.compile(r"ValidatingAdmissionPolicy '([^']+)'.* denied request: (.*)", re.DOTALL)
_POD_SECURITY = re.compile(r'violates PodSecurity "([^":]+)[^"]*": (.*)', re.DOTALL)
_PERMISSION = re.compile(
    r'User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "([^"]*)"(?: in the namespace "([^"]*)")?'
)
_ESCALATION = re.compile(
    r'user "([^"]*)"(?: \(groups=\[[^\]]*\]\))? is attempting to grant RBAC permissions not currently held:(.*)',
    re.DOTALL,
)
_PRIORITY_CLASS = re.compile(r"no PriorityClass with name (\S+) was found")


def as_refusal(error: ApiError, kind: str = "object of this kind") -> Exception:
    """Return the engine's error for a refusal of the API server."""
    return refusal_of(error.status, error.reason, error.message, error.details, kind)


@contextlib.contextmanager
def refusals(*ignored: int, kind: str = "object of this kind") -> Iterator[None]:
    """Context manager that raises EngineRefused for a refusal of the API server. A refusal with an ignored
    status ends the block without an exception."""
    try:
        yield
    except ApiError as error:
        if error.status not in ignored:
            raise as_refusal(error, kind) from error


@contextlib.contextmanager
def pod_refusals(pod: str) -> Iterator[None]:
    """Context manager that raises EngineRefused if the API server refuses a connection into this pod."""
    try:
        yield
    except ApiError as error:
        codes = {404: NO_SUCH_POD, 403: NOT_PERMITTED, 401: NOT_PERMITTED}
        raise EngineRefused(codes.get(error.status, POD_NOT_RUNNING), f"{pod}: {error.message}") from error
    except ApiFailed as error:
        if "container not found" in error.message or "not running" in error.message:
            raise EngineRefused(POD_NOT_RUNNING, f"{pod}: {error.message}") from error
        raise


def refusal_of(
    status: int, reason: str, message: str, details: Mapping[str, Any], kind: str = "object of this kind"
) -> EngineRefused:
    """Return the engine's reason and message for a 4xx response: its HTTP status, and the fields of its Status
    object. `kind`: the kind of the requested object."""
    # Checked first, because webhooks and policies choose any status.
    if denied := _denied(message):
        return denied
    if status == 409:
        return _conflict(reason, message)
    if status == 422:
        return EngineRefused(
            INVALID_POD, f"The cluster finds the object invalid. {_causes(message, details)}"
        )
    # The namespace is missing, not the object itself.
    if status == 404 and not details.get("name"):
        return EngineRefused(
            DEFINITION_MISSING,
            f"The cluster knows no {kind} (any more): was its definition (CRD) removed? {_words(message)}",
            is_passing=True,
        )
    if status == 404:
        return EngineRefused(
            ADMISSION_REFUSED,
            f"The cluster has no such thing: {_words(message)}",
            is_passing="namespaces" in message,
        )
    if status in (401, 403):
        return _forbidden(status, message, details)
    return EngineRefused(ADMISSION_REFUSED, f"The cluster refuses it ({status} {reason}): {_words(message)}")


def _conflict(reason: str, message: str) -> EngineRefused:
    if reason == "AlreadyExists":
        return EngineRefused(NAME_TAKEN, f"An object of this name exists and is not ours: {_words(message)}")
    # Another client changed the object between read and write, which the next try reads again. Quotas under
    # load answer this too.
    return EngineRefused(
        ADMISSION_REFUSED, f"The object changed meanwhile: {_words(message)}", is_passing=True
    )


def _forbidden(status: int, message: str, details: Mapping[str, Any]) -> EngineRefused:
    """Translate a 403. Admission and missing permissions share this status; only their messages differ."""
    if match := _QUOTA.search(message):
        name, asked, used, limit = (_words(part) for part in match.groups())
        return EngineRefused(
            QUOTA_REFUSED,
            f"The cluster's quota {name} refuses the pod: it asks for {asked}; in use are {used} of {limit}.",
            is_passing=True,
        )
    if match := _NEEDS_QUOTA.search(message):
        return EngineRefused(
            ADMISSION_REFUSED,
            f"The quota {match[1]} in the project's namespace wants every pod to state {match[2]}.",
        )
    if _is_terminating(message, details):
        return EngineRefused(
            NAMESPACE_NOT_OURS,
            f"The project's namespace is being deleted: {_words(message)}",
            is_passing=True,
        )
    return _not_permitted(status, message)


def _is_terminating(message: str, details: Mapping[str, Any]) -> bool:
    causes = details.get("causes") or ()
    return "being terminated" in message or any(
        cause.get("reason") == "NamespaceTerminating" for cause in causes
    )


def _denied(message: str) -> EngineRefused | None:
    """Recognise the refusal of an admission plug-in, policy or webhook. None for any other message."""
    if match := _WEBHOOK.search(message):
        said = _words(match[2] or "it gives no reason")
        return EngineRefused(ADMISSION_REFUSED, f"The cluster's webhook {match[1]} refuses the pod: {said}")
    if match := _POLICY.search(message):
        return EngineRefused(
            ADMISSION_REFUSED, f"The cluster's policy {match[1]} refuses the pod: {_words(match[2])}"
        )
    if match := _POD_SECURITY.search(message):
        return EngineRefused(
            ADMISSION_REFUSED,
            f"Pod security {match[1]!r} of the project's namespace refuses the pod: {_words(match[2])}. An admin can "
            "set the cluster's pod_security.",
        )
    if match := _PRIORITY_CLASS.search(message):
        return EngineRefused(
            ADMISSION_REFUSED,
            f"The cluster has no PriorityClass {match[1]} yet; it is made again.",
            is_passing=True,
        )
    if match := re.search(
        r'error looking up service account (\S+): serviceaccount "([^"]+)" not found', message
    ):
        # A new namespace gets its default service account a moment later.
        return EngineRefused(
            ADMISSION_REFUSED, f"The namespace has no service account {match[2]} yet.", is_passing=True
        )
    return None


def _not_permitted(status: int, message: str) -> EngineRefused:
    if match := _PERMISSION.search(message):
        user, verb, resource, group, namespace = match.groups()
        what = f"{resource}.{group}" if group else resource
        where = f"in namespace {namespace}" if namespace else "in the cluster"
        return EngineRefused(
            NOT_PERMITTED, f"Our account {user} may not {verb} {what} {where}. Give it that verb by a role."
        )
    if match := _ESCALATION.search(message):
        return EngineRefused(
            NOT_PERMITTED,
            f"Our account {match[1]} may not give away rights that it does not have: {_words(match[2])}",
        )
    if status == 401:
        said = f"The cluster does not accept our credentials: {_words(message)}. Give it new ones."
        return EngineRefused(CREDENTIALS_REFUSED, said, is_passing=True)
    return EngineRefused(ADMISSION_REFUSED, f"The cluster refuses it: {_words(message)}")


def _causes(message: str, details: Mapping[str, Any]) -> str:
    """Return field and message of each cause: what the user has to correct."""
    causes = [
        f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in details.get("causes") or ()
    ]
    return _words("; ".join(causes) or message)


def _words(text: str) -> str:
    """Return the cluster's message on one line of bounded length."""
    return line(text, LONGEST_WORDS)
