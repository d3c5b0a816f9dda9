"""Requests to Azure NetApp Files through Azure's own packages, each with a deadline; errors carry Azure's
code and message. The packages are imported at the first request, since most installations do not use Azure."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from datasets.storage.anf_driver import AnfConfig
from datasets.storage.base import UNLIMITED, Blocked, Budget
from datasets.storage.credentials import read_credentials
from datasets.storage.refusals import not_configured, one_line, package_missing
from datasets.storage.timeouts import DEFAULT_TIMEOUTS, Timeouts

if TYPE_CHECKING:
    from azure.mgmt.netapp import NetAppManagementClient

ENVIRONMENT = {
    "tenant_id": "AZURE_TENANT_ID",
    "client_id": "AZURE_CLIENT_ID",
    "client_secret": "AZURE_CLIENT_SECRET",
}
NOT_FOUND, NOT_NOW = (404,), (408, 409, 429)

Row = Mapping[str, Any]


class AnfClient:
    """Volumes and snapshots of one NetApp account, for the storage class `name`; rows are as in Azure's REST
    API."""

    def __init__(self, config: AnfConfig | None, name: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self._config, self._name, self._timeouts = config, name, timeouts
        self._client: NetAppManagementClient | None = None

    @property
    def config(self) -> AnfConfig:
        """Return the configured account. Raises Blocked if the storage class is no longer configured."""
        if self._config is None:
            raise not_configured(self._name)
        return self._config

    def pools(self) -> list[str]:
        """Return the names of the account's capacity pools. Raises Blocked if Azure refuses or does not answer, also
        if the account does not exist."""
        with self._request() as client:
            rows = [_row(one) for one in client.pools.list(*self._path())]
        return [row["id"].rpartition("/")[2] for row in rows]

    def volume(self, pool: str, name: str) -> Row | None:
        """Return the volume `name` of a pool, None if there is none. Raises Blocked if Azure refuses or does not
        answer."""
        try:
            with self._request() as client:
                return _row(client.volumes.get(*self._path(pool, name)))
        except AnfRefused as refused:
            if refused.status in NOT_FOUND:
                return None
            raise

    def volumes(self, pool: str) -> list[Row]:
        """Return the volumes of a pool. Raises Blocked if Azure refuses or does not answer."""
        with self._request() as client:
            return [_row(one) for one in client.volumes.list(*self._path(pool))]

    def snapshots(self, pool: str, volume: str) -> list[Row]:
        """Return the snapshots of a volume in a capacity pool. Raises Blocked if Azure refuses or does not
        answer."""
        with self._request() as client:
            return [_row(one) for one in client.snapshots.list(*self._path(pool, volume))]

    def create(self, pool: str, name: str, body: Row, budget: Budget) -> None:
        """Create a volume in a capacity pool and wait for it. `body`: the volume as in Azure's REST API. Raises
        Blocked if Azure refuses, fails or takes too long, and what `budget` raises."""
        self._run(budget, "volumes", "begin_create_or_update", pool, name, dict(body))

    def change(self, pool: str, name: str, body: Row, budget: Budget = UNLIMITED) -> None:
        """Set the fields of `body` on a volume in a capacity pool and wait until that is done. Raises as
        `create`."""
        self._run(budget, "volumes", "begin_update", pool, name, dict(body))

    def move(self, pool: str, name: str, to: str, budget: Budget) -> None:
        """Move a volume to another pool while it stays mounted, and wait. Raises as `create`."""
        body = {"newPoolResourceId": self.pool_id(to)}
        self._run(budget, "volumes", "begin_pool_change", pool, name, body)

    def delete(self, pool: str, name: str) -> None:
        """Delete a volume of a capacity pool with its snapshots and wait, without a budget. Raises Blocked if Azure
        refuses, fails or takes too long."""
        self._run(UNLIMITED, "volumes", "begin_delete", pool, name)

    def create_snapshot(self, pool: str, volume: str, name: str, budget: Budget) -> None:
        """Take the snapshot `name` of a volume in a capacity pool and wait until that is done. Raises as
        `create`."""
        body = {"location": self.config.location}
        self._run(budget, "snapshots", "begin_create", pool, volume, name, body)

    def delete_snapshot(self, pool: str, volume: str, name: str) -> None:
        """Delete the snapshot `name` of a volume in a capacity pool and wait, without a budget. Raises Blocked if
        Azure refuses, fails or takes too long."""
        self._run(UNLIMITED, "snapshots", "begin_delete", pool, volume, name)

    def pool_id(self, pool: str) -> str:
        """Return the resource id of a capacity pool."""
        config = self.config
        group = f"/subscriptions/{config.subscription}/resourceGroups/{config.resource_group}"
        return f"{group}/providers/Microsoft.NetApp/netAppAccounts/{config.account}/capacityPools/{pool}"

    def _path(self, *names: str) -> tuple[str, ...]:
        return (self.config.resource_group, self.config.account, *names)

    def _run(self, budget: Budget, kind: str, verb: str, *about: Any) -> None:
        """Start the operation `verb` of the client's collection `kind` and wait in this thread until it ends. Raises
        Blocked if Azure refuses, fails or takes too long, and what `budget` raises."""
        ends = time.monotonic() + self._timeouts.job_seconds

        def check() -> None:
            budget.check()
            if time.monotonic() > ends:
                seconds = f"{self._timeouts.job_seconds:g} s"
                raise Blocked("job_not_done", f"Azure did not end {verb} of {about[1]} within {seconds}.")

        with self._request() as client:
            from datasets.storage.anf_kinds import InThisThread

            method = InThisThread(check, self._timeouts.pause_seconds)
            getattr(getattr(client, kind), verb)(*self._path(*about), polling=method)
            method.wait()

    @contextmanager
    def _request(self) -> Iterator[NetAppManagementClient]:
        secrets = read_credentials(self.config.credentials, ENVIRONMENT) if self._client is None else {}
        try:
            from datasets.storage.anf_kinds import AzureError, connect
        except ImportError as error:
            raise package_missing(error) from error
        try:
            if self._client is None:
                seconds = (self._timeouts.connect_seconds, self._timeouts.answer_seconds)
                self._client = connect(self.config, secrets, seconds)
            yield self._client
        except AzureError as error:
            found = _translated(error)
            if found.code == "not_permitted":
                # Drop the client: the next request reads the credentials again.
                self._client = None
            raise found from error
        except (ValueError, KeyError, AttributeError) as error:
            words = f"The endpoint does not answer like Azure: {type(error).__name__}: {error}"
            raise Blocked("unreachable", one_line(words)) from error


class AnfRefused(Blocked):
    """Azure answered with an error; `status`: the HTTP status."""

    def __init__(self, status: int, detail: str) -> None:
        is_passing = status >= 500 or status in NOT_NOW
        super().__init__("storage_refused", one_line(detail), is_passing=is_passing)
        self.status = status


def _row(found: Any) -> Row:
    row: Row = found.as_dict()
    return row


def _translated(error: Any) -> Blocked:
    """Return Blocked, with a message for operators, for an error of Azure's packages."""
    status = getattr(error, "status_code", None)
    if "certificate verify failed" in str(error).lower():
        words = f"The certificate is not trusted; name its authority with `ca_file`: {error}"
        return Blocked("not_trusted", one_line(words))
    # A sign-in error has a status only if Azure refused the credentials.
    if status in (401, 403) or "AADSTS" in str(error):
        return Blocked("not_permitted", one_line(f"Azure refuses the credentials: {_words(error)}"))
    # DecodeError: another server has answered. By name, because the package is imported lazily.
    if status is not None and type(error).__name__ != "DecodeError":
        return AnfRefused(status, f"Azure: {_words(error)}")
    return Blocked("unreachable", one_line(f"Azure does not answer as expected: {error}"))


def _words(error: Any) -> str:
    """Return Azure's code and message, from the failed operation or the answer."""
    try:
        said = json.loads(error.response.text())["error"]
        return f"{said['code']}: {said['message']}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return str(error.message)
