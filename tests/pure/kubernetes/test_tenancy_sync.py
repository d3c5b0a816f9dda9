"""What the sync of projects makes of refusals; with a real server see tests/kubernetes/test_engine_projects.py."""

from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.engines.base import EngineRefused
from controlplane.engines.kubernetes import tenancy
from controlplane.engines.kubernetes.objects import Objects
from controlplane.engines.kubernetes.tenancy_sync import BINDING, Syncer
from controlplane.kubernetes_api.errors import ApiError
from tests.pure.kubernetes.goldens import RESTRICTED, TEAM


class Server:
    """Has our namespaces and nothing else, takes what is applied, and answers questions about roles with `status` and
    these words."""

    def __init__(self, status: int, words: bytes) -> None:
        self.status, self.words = status, words
        self.applied: list[str] = []

    def find(self, path: str, query: Any = None) -> dict[str, Any]:
        if "clusterroles" in path:
            raise ApiError(self.status, self.words)
        return tenancy.namespace(TEAM.name, RESTRICTED) if query is None else {"items": []}

    def server_time(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def apply(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.applied.append(body["kind"])
        return body


def syncer(server: Server) -> Syncer:
    objects = Objects(server, RESTRICTED.installation)  # type: ignore[arg-type]  # as much of a client as it uses
    return Syncer(server, objects, RESTRICTED)  # type: ignore[arg-type]  # the same


# As an API server says it, and as a proxy before one may.
RBAC = b'{"message": "User \\"yard\\" cannot get resource \\"clusterroles\\" in API group \\"rbac\\""}'


@pytest.mark.parametrize("words", [RBAC, b"Forbidden", b"<html>403</html>"])
def test_whoever_may_not_read_roles_makes_projects_without_bindings(words: bytes):
    server = Server(403, words)
    wanted = tenancy.objects([TEAM], RESTRICTED)
    syncer(server).sync(wanted, [])
    assert server.applied == [body["kind"] for body in wanted if body["kind"] != BINDING]
    assert "NetworkPolicy" in server.applied


def test_another_refusal_of_that_question_is_raised():
    server = Server(401, b"Unauthorized")
    with pytest.raises(EngineRefused, match="credentials"):
        syncer(server).sync(tenancy.objects([TEAM], RESTRICTED), [])
    assert server.applied == []
