"""A server that answers as Azure NetApp Files (API 2026-08-01) and its sign-in do, with state: volumes in
capacity pools, snapshots, operations.

It is not Azure: its volumes are directories, and it knows only the requests that Trainyard sends. It refuses what
Azure refuses of them: a volume below 50 GiB or not of whole GiB, and a move to the pool where the volume is.
Azure refuses more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets.storage.anf_driver import AnfConfig
from tests.served_storage import Answer, ServedStorage, served

SECRET, TOKEN = "a secret of the tests", "a-token-of-the-tests"
GIB = 1 << 30
ACCOUNT = "/subscriptions/sub1/resourceGroups/group1/providers/Microsoft.NetApp/netAppAccounts/account1"
SUBNET = (
    "/subscriptions/sub1/resourceGroups/group1/providers/Microsoft.Network/virtualNetworks/net1/subnets/anf"
)
POOLS = {"standard": "pool-standard", "premium": "pool-premium"}


class Refused(Exception):
    """An error with a code of Azure's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class ServedAnf(ServedStorage):
    """One account with two capacity pools. `looks`: how often an operation must be read before it ends;
    `next_error`: the error with which the next one ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.volumes: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.operations: dict[str, dict[str, Any]] = {}
        # Looks at an operation before it ends; the error of the next one.
        self.looks = 1
        self.next_error: dict[str, str] | None = None
        self.credentials = directory / "anf.ini"
        self.credentials.write_text(
            f"[default]\ntenant_id = tenant1\nclient_id = client1\nclient_secret = {SECRET}\n"
        )

    def config(self, **more: Any) -> AnfConfig:
        """Return the storage class's configuration for this account. `more`: fields to replace."""
        where = {"endpoint": self.endpoint, "authority": self.endpoint}
        files = {"credentials": str(self.credentials), "ca_file": str(self.certificate)}
        fields = {**where, **files, **more}
        return AnfConfig("sub1", "group1", "account1", "westeurope", SUBNET, POOLS, **fields)

    def statement(self) -> dict[str, Any]:
        """Return the configuration of a storage class for this account as an admin writes it."""
        names = {"subscription": "sub1", "resource_group": "group1", "account": "account1"}
        files = {"credentials": str(self.credentials), "ca_file": str(self.certificate)}
        where = {"endpoint": self.endpoint, "authority": self.endpoint, "location": "westeurope"}
        about = {"driver": "anf", "mount_root": str(self.namespace), "subnet": SUBNET, "pools": POOLS}
        return {**about, **names, **files, **where}

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, headers: Any) -> Answer:
        if path.startswith("/tenant1/"):
            return self._sign_in(path, body)
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": {"code": "AuthenticationFailed", "message": "Authentication failed."}}, {}
        if path.startswith("/operations/"):
            return 200, self._operation(path.rpartition("/")[2]), {}
        if path.startswith("/results/"):
            return 200, {}, {}
        assert query["api-version"]
        if path == f"{ACCOUNT}/capacityPools":
            rows = [{"id": f"{path}/{pool}", "properties": {}} for pool in POOLS.values()]
            return 200, {"value": rows}, {}
        pool, _, _ = path.removeprefix(f"{ACCOUNT}/capacityPools/").partition("/")
        if pool not in POOLS.values():
            return 404, {"error": {"code": "ParentResourceNotFound", "message": f"{path} was not found."}}, {}
        return self._about(method, path, path.removeprefix(f"{ACCOUNT}/capacityPools/").split("/"), body)

    def _sign_in(self, path: str, body: Any) -> Answer:
        base = f"{self.endpoint}/tenant1"
        if path.endswith("/openid-configuration"):
            names = {"authorization_endpoint": "authorize", "token_endpoint": "token"}
            found = {key: f"{base}/oauth2/v2.0/{name}" for key, name in names.items()}
            return 200, {**found, "issuer": f"{base}/v2.0"}, {}
        if body["client_secret"] != SECRET:
            return (
                401,
                {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret."},
                {},
            )
        return 200, {"token_type": "Bearer", "expires_in": 3600, "access_token": TOKEN}, {}

    def _about(self, method: str, path: str, names: list[str], body: Any) -> Answer:
        match method, *names[1:]:
            case "GET", "volumes":
                return 200, {"value": [row for key, row in self.volumes.items() if key.startswith(path)]}, {}
            case "GET", "volumes", _ if path in self.volumes:
                return 200, self.volumes[path], {}
            case "GET", "volumes", _, "snapshots" if path.rpartition("/")[0] in self.volumes:
                return (
                    200,
                    {"value": [row for key, row in self.snapshots.items() if key.startswith(path)]},
                    {},
                )
            case "GET", "volumes", _, "snapshots", _ if path in self.snapshots:
                return 200, self.snapshots[path], {}
            case "PUT", "volumes", _:
                return self._begun(201, lambda: self._create(path, body), path, self.volumes)
            case "PUT", "volumes", _, "snapshots", _:
                return self._begun(201, lambda: self._take(path, body), path, self.snapshots)
            case "PATCH", "volumes", _ if path in self.volumes:
                return self._begun(202, lambda: self._change(self.volumes[path], body))
            case "POST", "volumes", _, "poolChange" if path.rpartition("/")[0] in self.volumes:
                return self._begun(
                    202, lambda: self._move(path.rpartition("/")[0], body["newPoolResourceId"])
                )
            case "DELETE", "volumes", _ if path in self.volumes:
                return self._begun(202, lambda: self._delete(path))
            case "DELETE", "volumes", _, "snapshots", _ if path in self.snapshots:
                return self._begun(202, lambda: self._delete_snapshot(path))
        return (
            404,
            {"error": {"code": "ResourceNotFound", "message": f"The Resource {path} was not found."}},
            {},
        )

    def _begun(
        self, status: int, work: Callable[[], None], path: str = "", rows: dict[str, Any] | None = None
    ) -> Answer:
        """Do the work at once and answer with an operation. Its result, or error, shows once it has been read
        `looks` times."""
        error, self.next_error = self.next_error, None
        if error is None:
            try:
                work()
            except Refused as refused:
                error = refused.error
        key = str(uuid4())
        self.operations[key] = {"error": error, "looks": self.looks}
        headers = {"Azure-AsyncOperation": f"{self.endpoint}/operations/{key}", "Retry-After": "15"}
        if status == 202:
            return 202, {}, {**headers, "Location": f"{self.endpoint}/results/{key}"}
        row = (rows or {}).get(path) or {"id": path, "properties": {}}
        return 201, {**row, "properties": {**row["properties"], "provisioningState": "Creating"}}, headers

    def _operation(self, key: str) -> dict[str, Any]:
        operation = self.operations[key]
        operation["looks"] -= 1
        about = {"id": f"/operations/{key}", "name": key}
        if operation["looks"] >= 0:
            return {**about, "status": "InProgress"}
        if operation["error"]:
            return {**about, "status": "Failed", "error": operation["error"]}
        return {**about, "status": "Succeeded"}

    def named(self, name: str) -> dict[str, Any]:
        return next(row for key, row in self.volumes.items() if key.endswith(f"/{name}"))

    def _create(self, path: str, body: dict[str, Any]) -> None:
        properties, name = body["properties"], path.rpartition("/")[2]
        _check_size(properties["usageThreshold"])
        source = self.snapshots.get(properties.get("snapshotId"))
        if properties.get("snapshotId") and source is None:
            raise Refused("SnapshotNotFound", "The snapshot was not found.")
        self.fill(name, source["properties"]["snapshotId"] if source else "")
        self.show(name)
        targets = [{"fileSystemId": str(uuid4()), "ipAddress": "10.0.0.4"}]
        self.volumes[path] = {
            **body,
            "id": path,
            "name": "/".join(path.split("/")[-5::2]),
            "type": "Microsoft.NetApp/netAppAccounts/capacityPools/volumes",
            "properties": {**properties, "provisioningState": "Succeeded", "mountTargets": targets},
        }

    def _take(self, path: str, body: dict[str, Any]) -> None:
        volume, _, name = path.rpartition("/snapshots/")
        key = str(uuid4())
        self.fill(key, volume.rpartition("/")[2])
        about = {"snapshotId": key, "provisioningState": "Succeeded", "created": "2026-08-01T00:00:00Z"}
        self.snapshots[path] = {**body, "id": path, "name": name, "properties": about}

    def _change(self, volume: dict[str, Any], body: dict[str, Any]) -> None:
        changes = body.get("properties", {})
        if "usageThreshold" in changes:
            _check_size(changes["usageThreshold"])
        if changes.get("exportPolicy", {}).get("rules") == []:
            self.hide(volume["id"].rpartition("/")[2])
        volume["properties"].update(changes)
        volume["tags"] = body.get("tags", volume["tags"])

    def _move(self, path: str, pool: str) -> None:
        name = path.rpartition("/")[2]
        if path.startswith(f"{pool}/"):
            raise Refused("PoolChangeFailed", "The volume is in this pool already.")
        to = f"{pool}/volumes/{name}"
        self.volumes[to] = {**self.volumes.pop(path), "id": to}
        for key in [key for key in self.snapshots if key.startswith(f"{path}/")]:
            moved = to + key.removeprefix(path)
            self.snapshots[moved] = {**self.snapshots.pop(key), "id": moved}

    def _delete(self, path: str) -> None:
        for key in [key for key in self.snapshots if key.startswith(f"{path}/")]:
            self._delete_snapshot(key)
        del self.volumes[path]
        self.erase(path.rpartition("/")[2])

    def _delete_snapshot(self, path: str) -> None:
        self.erase(self.snapshots.pop(path)["properties"]["snapshotId"])


def _check_size(size: int) -> None:
    if size < 50 * GIB or size % GIB:
        raise Refused("InvalidValueReceived", "usageThreshold is out of range: 50 GiB to 100 TiB, in GiB.")


@contextmanager
def served_anf(directory: Path) -> Iterator[ServedAnf]:
    """Context manager with a running server of an account without volumes."""
    anf = ServedAnf(directory)
    with served(anf):
        yield anf
