"""What the API server's refusals mean. The bodies are those of a real one, but for policies and webhooks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.engines import base
from controlplane.engines.base import EngineRefused
from controlplane.engines.kubernetes.api_errors import refusal_of
from controlplane.kubernetes_api.errors import ApiError

NAMESPACE_GONE = {
    "causes": [{"reason": "NamespaceTerminating", "message": "namespace bye is being terminated"}]
}
FIELDS = {
    "causes": [
        {"field": "spec.restartPolicy", "message": 'Unsupported value: "Sometimes"'},
        {"field": "spec.dnsPolicy", "message": 'Unsupported value: "x"'},
    ]
}


def refusal(status: int, message: str, reason: str = "Forbidden", **details: Any) -> EngineRefused:
    body = {"reason": reason, "message": message, "details": details}
    return refusal_of(ApiError(status, json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("found", "code", "is_passing", "words"),
    [
        (
            refusal(
                403,
                'pods "p" is forbidden: exceeded quota: trainyard-limit, requested: requests.nvidia.com/gpu=9, '
                "used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=8",
            ),
            base.QUOTA_REFUSED,
            True,
            "quota trainyard-limit refuses the pod: it asks for requests.nvidia.com/gpu=9; in use are",
        ),
        (
            refusal(403, 'pods "p" is forbidden: failed quota: hand-made: must specify limits.cpu for: main'),
            base.ADMISSION_REFUSED,
            False,
            "hand-made in the project's namespace wants every pod to state limits.cpu",
        ),
        (
            refusal(
                403,
                'pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged (container "main" must '
                "not set securityContext.privileged=true)",
            ),
            base.ADMISSION_REFUSED,
            False,
            "Pod security 'restricted' of the project's namespace refuses the pod: privileged (container",
        ),
        (
            refusal(
                400,
                'admission webhook "policy.site.example" denied the request: no latest tags',
                "BadRequest",
            ),
            base.ADMISSION_REFUSED,
            False,
            "webhook policy.site.example refuses the pod: no latest tags",
        ),
        (
            refusal(403, 'admission webhook "policy.site.example" denied the request without explanation'),
            base.ADMISSION_REFUSED,
            False,
            "policy.site.example refuses the pod: it gives no reason",
        ),
        (
            refusal(
                422,
                "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'tags' with binding 'tags' denied request: no tag",
                "Invalid",
            ),
            base.ADMISSION_REFUSED,
            False,
            "policy tags refuses the pod: no tag",
        ),
        (
            refusal(422, "Pod is invalid", "Invalid", **FIELDS),
            base.INVALID_POD,
            False,
            "spec.restartPolicy: Unsupp",
        ),
        (
            refusal(403, "unable to create new content in namespace bye", **NAMESPACE_GONE),
            base.NAMESPACE_NOT_OURS,
            True,
            "is being deleted",
        ),
        (
            refusal(
                403,
                'pods is forbidden: User "system:serviceaccount:ours:web" cannot create resource "pods" in API group '
                '"" in the namespace "yard-a"',
            ),
            base.NOT_PERMITTED,
            False,
            'account system:serviceaccount:ours:web may not create pods in the namespace "yard-a". Grant',
        ),
        (
            refusal(
                403,
                'User "ana" cannot list resource "queues" in API group "scheduling.run.ai" at the cluster scope',
            ),
            base.NOT_PERMITTED,
            False,
            "may not list queues.scheduling.run.ai at the cluster scope. Grant",
        ),
        (
            refusal(
                403,
                'roles.rbac.authorization.k8s.io "x" is forbidden: user "system:serviceaccount:ours:web" '
                '(groups=["system:serviceaccounts" "system:authenticated"]) is attempting to grant RBAC permissions '
                'not currently held:\n{APIGroups:[""], Resources:["secrets"], Verbs:["list"]}',
            ),
            base.NOT_PERMITTED,
            False,
            'account system:serviceaccount:ours:web may not grant rights that it does not have: {APIGroups:[""]',
        ),
        (refusal(401, "Unauthorized", "Unauthorized"), base.CREDENTIALS_REFUSED, True, "credentials"),
        (
            refusal(409, 'pods "p" already exists', "AlreadyExists"),
            base.NAME_TAKEN,
            False,
            "is not Trainyard's",
        ),
        (
            refusal(409, "the object has been modified", "Conflict"),
            base.ADMISSION_REFUSED,
            True,
            "changed meanwhile",
        ),
        (
            refusal(403, 'pods "p" is forbidden: no PriorityClass with name trainyard-x was found'),
            base.ADMISSION_REFUSED,
            True,
            "no PriorityClass trainyard-x",
        ),
        (
            refusal(
                403,
                'pods "p" is forbidden: error looking up service account yard-a/default: serviceaccount "default" '
                "not found",
            ),
            base.ADMISSION_REFUSED,
            True,
            "no service account default yet",
        ),
        (
            refusal(404, 'namespaces "gone" not found', "NotFound", name="gone", kind="namespaces"),
            base.ADMISSION_REFUSED,
            True,
            "gone",
        ),
        (
            refusal(404, 'pods "p" not found', "NotFound", name="p", kind="pods"),
            base.ADMISSION_REFUSED,
            False,
            "no such object",
        ),
        (
            refusal(404, "the server could not find the requested resource", "NotFound"),
            base.DEFINITION_MISSING,
            True,
            "was its definition",
        ),
        (refusal(404, "404 page not found\n", ""), base.DEFINITION_MISSING, True, "page not found"),
        (refusal(413, "x" * 5000, "RequestEntityTooLarge"), base.ADMISSION_REFUSED, False, "413"),
    ],
)
def test_a_refusal_is_named(found: EngineRefused, code: str, is_passing: bool, words: str):
    assert (found.code, found.is_passing) == (code, is_passing)
    assert words in found.message
    assert len(found.message) < 700
