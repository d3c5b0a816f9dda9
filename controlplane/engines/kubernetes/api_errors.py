"""Translate the API server's refusals into errors of engines and storage that quote the server's message. No I/O."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from controlplane.engines import base
from controlplane.engines.base import EngineRefused
from controlplane.engines.kubernetes.sanitize import line
from controlplane.kubernetes_api.errors import ApiError, ApiFailed
from datasets.storage.base import Blocked

LONGEST_WORDS = 400
# What a message means: its pattern, our code, our sentence with the pattern's groups, and whether a retry may succeed.
_Meaning: TypeAlias = tuple[str, str, str, bool]
# fmt: off
# Messages of admission plug-ins, policies and webhooks, which choose any status.
_ADMISSION: tuple[_Meaning, ...] = (
    (r'admission webhook "([^"]+)" denied the request(?:: (.*)| without explanation)', base.ADMISSION_REFUSED,
     "The cluster's webhook {0} refuses the pod: {1}", False),
    (r"ValidatingAdmissionPolicy '([^']+)'.* denied request: (.*)", base.ADMISSION_REFUSED,
     "The cluster's policy {0} refuses the pod: {1}", False),
    (r'violates PodSecurity "([^":]+)[^"]*": (.*)', base.ADMISSION_REFUSED,
     "Pod security '{0}' of the project's namespace refuses the pod: {1}. An admin can set the cluster's pod_security.",
     False),
    (r"no PriorityClass with name (\S+) was found", base.ADMISSION_REFUSED,
     "The cluster has no PriorityClass {0} yet; it is created again.", True),
    # A new namespace gets its default service account a moment later, so the next try may succeed.
    (r'error looking up service account \S+: serviceaccount "([^"]+)" not found', base.ADMISSION_REFUSED,
     "The namespace has no service account {0} yet.", True),
)
# Messages of a 403, which admission and missing permissions share.
_FORBIDDEN: tuple[_Meaning, ...] = (
    (r"exceeded quota: ([^,]+), requested: (.*), used: (.*), limited: (.*)", base.QUOTA_REFUSED,
     "The cluster's quota {0} refuses the pod: it asks for {1}; in use are {2} of {3}.", True),
    (r"failed quota: ([^:]+): must specify (.+)", base.ADMISSION_REFUSED,
     "The quota {0} in the project's namespace wants every pod to state {1}.", False),
    (r'user "([^"]*)"(?: \(groups=\[[^\]]*\]\))? is attempting to grant RBAC permissions not currently held:(.*)',
     base.NOT_PERMITTED, "Trainyard's account {0} may not grant rights that it does not have: {1}", False),
    (r'User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "" (.*)', base.NOT_PERMITTED,
     "Trainyard's account {0} may not {1} {2} {3}. Grant it that verb in a role.", False),
    (r'User "([^"]*)" cannot (\S+) resource "([^"]*)" in API group "([^"]+)" (.*)', base.NOT_PERMITTED,
     "Trainyard's account {0} may not {1} {2}.{3} {4}. Grant it that verb in a role.", False),
)
# fmt: on


@contextlib.contextmanager
def refusals(*ignored: int, kind: str = "object of this kind") -> Iterator[None]:
    """Context manager that raises EngineRefused if the API server refuses a request in its block. A refusal with one
    of the `ignored` HTTP statuses only ends the block. `kind`: the kind of the requested object, for the message."""
    try:
        yield
    except ApiError as error:
        if error.status not in ignored:
            raise refusal_of(error, kind) from error


@contextlib.contextmanager
def pod_refusals(pod: str) -> Iterator[None]:
    """Context manager that raises EngineRefused if the API server refuses a connection into this pod: NO_SUCH_POD,
    NOT_PERMITTED or POD_NOT_RUNNING."""
    try:
        yield
    except ApiError as error:
        codes = {404: base.NO_SUCH_POD, 403: base.NOT_PERMITTED, 401: base.NOT_PERMITTED}
        code = codes.get(error.status, base.POD_NOT_RUNNING)
        raise EngineRefused(code, f"{pod}: {error.message}") from error
    except ApiFailed as error:
        if "container not found" in error.message or "not running" in error.message:
            raise EngineRefused(base.POD_NOT_RUNNING, f"{pod}: {error.message}") from error
        raise


def refusal_of(error: ApiError, kind: str = "object of this kind") -> EngineRefused:
    """Return the exception for a 4xx response: reason, message, and whether a retry may succeed. `kind`: the kind of
    the requested object, for the message."""
    status, message = error.status, error.message
    causes, said = error.details.get("causes") or (), _words(message)
    known = _meaning_of(message, _ADMISSION)
    if status in (401, 403):
        known = known or _meaning_of(message, _FORBIDDEN)
    if known is not None:
        return known
    is_ending = "being terminated" in message or any(
        one.get("reason") == "NamespaceTerminating" for one in causes
    )
    # The field and the message of each cause are what the user has to correct.
    wrong = "; ".join(f"{cause.get('field', '')}: {cause.get('message', '')}" for cause in causes)
    # fmt: off
    rows: tuple[tuple[bool, str, str, bool], ...] = (
        (status in (401, 403) and is_ending, base.NAMESPACE_NOT_OURS,
         f"The project's namespace is being deleted: {said}", True),
        (status == 401, base.CREDENTIALS_REFUSED,
         f"The cluster does not accept Trainyard's credentials: {said}. Give it new ones.", True),
        (status == 403, base.ADMISSION_REFUSED, f"The cluster refuses it: {said}", False),
        (status == 409 and error.reason == "AlreadyExists", base.NAME_TAKEN,
         f"An object of this name exists and is not Trainyard's: {said}", False),
        # Another client changed the object between read and write, which the next try reads again. Quotas under
        # load answer this too.
        (status == 409, base.ADMISSION_REFUSED, f"The object changed meanwhile: {said}", True),
        (status == 422, base.INVALID_POD, f"The cluster rejects the object. {_words(wrong or message)}", False),
        # Without the name of the object, its kind is not defined.
        (status == 404 and not error.details.get("name"), base.DEFINITION_MISSING,
         f"The cluster does not serve {kind} (any more): was its definition (CRD) removed? {said}", True),
        # A missing namespace is a temporary reason, because the next try creates it again.
        (status == 404, base.ADMISSION_REFUSED, f"The cluster has no such object: {said}", "namespaces" in message),
        (True, base.ADMISSION_REFUSED, f"The cluster refuses it ({status} {error.reason}): {said}", False),
    )
    # fmt: on
    code, words, is_passing = next(row[1:] for row in rows if row[0])
    return EngineRefused(code, words, is_passing=is_passing)


def blocked_by(error: ApiError, *, is_passing: bool = True) -> Blocked:
    """Return the exception for a refused request about what stores data: NOT_PERMITTED with the right that Trainyard's
    account lacks, else `refused` with the server's words. `is_passing`: whether a retry may succeed."""
    known = refusal_of(error)
    if known.code == base.NOT_PERMITTED:
        return Blocked(base.NOT_PERMITTED, known.message, is_passing=is_passing)
    return Blocked("refused", _words(str(error)), is_passing=is_passing)


def _meaning_of(message: str, meanings: Iterable[_Meaning]) -> EngineRefused | None:
    """Return the exception of the first meaning whose pattern is in the message; None if there is none."""
    for pattern, code, sentence, is_passing in meanings:
        if match := re.search(pattern, message, re.DOTALL):
            groups = (_words(group or "it gives no reason") for group in match.groups())
            return EngineRefused(code, sentence.format(*groups), is_passing=is_passing)
    return None


def _words(text: str) -> str:
    return line(text, LONGEST_WORDS)
