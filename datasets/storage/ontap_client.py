"""Requests to an ONTAP system through NetApp's own package, each with a deadline; errors carry ONTAP's code
and message.

The package is imported at the first request: it is large, and most installations do not use ONTAP. Its own
waiting is not used: it retries for minutes, cannot be cancelled, and polls at most once a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from datasets.storage.base import UNLIMITED, Blocked, Budget
from datasets.storage.credentials import read_credentials
from datasets.storage.ontap_driver import OntapConfig
from datasets.storage.refusals import not_configured, one_line, package_missing
from datasets.storage.timeouts import DEFAULT_TIMEOUTS, Timeouts

if TYPE_CHECKING:
    from netapp_ontap.host_connection import HostConnection

    from datasets.storage.ontap_kinds import Kinds

ENVIRONMENT = {"username": "ONTAP_USERNAME", "password": "ONTAP_PASSWORD"}
# ONTAP's error code: another operation on the same volume is running.
_BUSY = "13107406"
NOT_FOUND = "4"
_ENDED = ("success", "failure", "cancelled", "expired")

Row = Mapping[str, Any]


class OntapClient:
    """Objects of the SVM of the storage class `name`; kinds are "volume" and "snapshot"."""

    def __init__(self, config: OntapConfig | None, name: str, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> None:
        self._config, self._name, self._timeouts = config, name, timeouts
        self._opened: tuple[HostConnection, Kinds] | None = None

    @property
    def config(self) -> OntapConfig:
        """Return the configured SVM. Raises Blocked if the storage class is no longer configured."""
        if self._config is None:
            raise not_configured(self._name)
        return self._config

    def rows(self, kind: str, fields: str, *keys: str, **query: str) -> list[dict[str, Any]]:
        """Return the objects that match a query, with these fields. `keys`: identifiers of the parent objects in the
        URL path. Raises Blocked if ONTAP refuses or does not answer."""
        with self._request() as (connection, kinds):
            wanted = {"fields": fields, "svm.name": self.config.svm, **query}
            found = kinds[kind].get_collection(*keys, connection=connection, raw=True, **wanted)
            return [dict(row.resource_data) for row in found]

    def create(self, kind: str, body: Row, *keys: str, budget: Budget = UNLIMITED) -> None:
        """Create an object and wait for its job. `keys`: identifiers of its parents. Raises Blocked if ONTAP
        refuses, fails or takes too long, and what `budget` raises."""
        with self._request() as (connection, kinds):
            made = kinds[kind].from_dict(dict(body), *keys)
            made.set_connection(connection)
            answer = _body(made.post(poll=False, return_timeout=0))
        self._wait(answer, budget)

    def change(self, uuid: str, changes: Row, budget: Budget = UNLIMITED) -> None:
        """Change fields of the volume with this uuid and wait for ONTAP's job. Raises as `create`."""
        with self._request() as (connection, kinds):
            volume = kinds["volume"](uuid=uuid)
            volume.set_connection(connection)
            for name, value in changes.items():
                setattr(volume, name, value)
            answer = _body(volume.patch(poll=False, return_timeout=0))
        self._wait(answer, budget)

    def delete(self, kind: str, *keys: str, budget: Budget = UNLIMITED) -> None:
        """Delete an object of a kind and wait for ONTAP's job. `keys`: those in the path, the object's own last.
        Raises as `create`."""
        with self._request() as (connection, kinds):
            found = kinds[kind](*keys[:-1], uuid=keys[-1])
            found.set_connection(connection)
            answer = _body(found.delete(poll=False, return_timeout=0))
        self._wait(answer, budget)

    def _wait(self, answer: Row, budget: Budget) -> None:
        """Wait for the job that an answer names, if any. Raises OntapRefused if it fails, Blocked if it takes too
        long, and what `budget` raises."""
        uuid = (answer.get("job") or {}).get("uuid")
        if not uuid:
            return
        ends, (pause, longest) = time.monotonic() + self._timeouts.job_seconds, self._timeouts.pause_seconds
        while (job := self._job(uuid)).get("state") not in _ENDED:
            budget.check()
            if time.monotonic() > ends:
                words = (
                    f"ONTAP did not end the job {uuid} within {self._timeouts.job_seconds:g} s: {_said(job)}"
                )
                raise Blocked("job_not_done", one_line(words))
            time.sleep(pause)
            pause = min(pause * 2, longest)
        if job["state"] != "success":
            error = job.get("error") or job
            code = str(error.get("code") or "")
            words = f"ONTAP {code}: {error.get('message') or _said(job)}"
            raise OntapRefused(code, words, is_passing=code == _BUSY)

    def _job(self, uuid: str) -> Row:
        with self._request() as (connection, kinds):
            job = kinds["job"](uuid=uuid)
            job.set_connection(connection)
            return _body(job.get(fields="state,message,code,error"))

    @contextmanager
    def _request(self) -> Iterator[tuple[HostConnection, Kinds]]:
        connection, kinds = self._opened or self._open()
        self._opened = connection, kinds
        try:
            yield connection, kinds
        except kinds.error as error:
            # Drop the connection: the next request reads the credentials again.
            self._opened = None
            raise _translated(error, self.config) from error
        except (ValueError, KeyError) as error:
            raise _not_ontap(error, self.config) from error

    def _open(self) -> tuple[HostConnection, Kinds]:
        secrets = read_credentials(self.config.credentials, ENVIRONMENT)
        try:
            from datasets.storage.ontap_kinds import Kinds, connect
        except ImportError as error:
            raise package_missing(error) from error
        seconds = (self._timeouts.connect_seconds, self._timeouts.answer_seconds)
        return connect(self.config, secrets, seconds), Kinds()


class OntapRefused(Blocked):
    """ONTAP answered with an error; `ontap_code`: ONTAP's own code."""

    def __init__(self, ontap_code: str, detail: str, *, is_passing: bool) -> None:
        super().__init__("storage_refused", one_line(detail), is_passing=is_passing)
        self.ontap_code = ontap_code


def names(rows: Iterable[Row]) -> str:
    """Return the names of these objects, sorted and separated by commas."""
    return ", ".join(sorted(str(row["name"]) for row in rows))


def _translated(error: Any, config: OntapConfig) -> Blocked:
    """Return Blocked, with a message for operators, for an error of NetApp's package."""
    status = error.status_code
    if status is None:
        return _not_reached(error, config)
    body = error.response_body
    said = (body.get("error") or {}) if isinstance(body, dict) else {}
    code, message = str(said.get("code") or ""), said.get("message") or f"HTTP {status}"
    if status in (401, 403):
        words = f"ONTAP at {config.host} refuses the credentials: {code} {message}"
        return Blocked("not_permitted", one_line(words))
    is_passing = status >= 500 or status == 429 or code == _BUSY
    return OntapRefused(code, f"ONTAP {code or status}: {message}", is_passing=is_passing)


def _not_reached(error: Any, config: OntapConfig) -> Blocked:
    cause = getattr(error, "cause", error)
    where = f"{config.host}:{config.port}"
    if type(cause).__name__ == "SSLError":
        words = f"The certificate of {where} is not trusted; name its authority with `ca_file`: {cause}"
        return Blocked("not_trusted", one_line(words))
    if isinstance(cause, ValueError):
        return _not_ontap(cause, config)
    return Blocked("unreachable", one_line(f"ONTAP at {where} does not answer: {cause}"))


def _not_ontap(error: Exception, config: OntapConfig) -> Blocked:
    words = f"{config.host}:{config.port} does not answer like ONTAP: {type(error).__name__}: {error}"
    return Blocked("unreachable", one_line(words))


def _body(answer: Any) -> Row:
    found: Row = answer.http_response.json() if answer.http_response.content else {}
    return found


def _said(job: Row) -> str:
    return f"{job.get('state')}, {job.get('message') or 'without a message'}"
