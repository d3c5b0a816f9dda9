"""A cluster that refuses a deletion: the reason reaches the user."""

import json
from typing import Any

import pytest

from controlplane.kubernetes_api.errors import ApiError
from datasets.storage.base import Blocked
from datasets.storage.csi import ClaimKind, CsiVolumes


class RefusingClient:
    """Refuses every deletion, as an API server does for an account without the right."""

    def delete(self, path: str) -> None:
        status = {"kind": "Status", "reason": "Forbidden", "message": f"cannot delete {path}"}
        raise ApiError(403, json.dumps(status).encode())


@pytest.mark.parametrize(
    ("verb", "kind"), [("remove", "persistentvolumeclaims"), ("remove_snapshot", "volumesnapshots")]
)
def test_a_deletion_that_the_cluster_refuses_is_blocked_with_its_words(verb: str, kind: str) -> None:
    client: Any = RefusingClient()
    storage = CsiVolumes(client, "yard-team-a", {}, ClaimKind("", 1, "ReadWriteOnce"))
    with pytest.raises(Blocked, match=f"Forbidden: cannot delete .*{kind}") as refused:
        getattr(storage, verb)("v1")
    assert (refused.value.code, refused.value.is_passing) == ("refused", True)
