"""A server that answers as ONTAP's REST API (9.1x) does, with state: volumes, snapshots, FlexClones, jobs.

It is not ONTAP: its volumes are directories, a clone is a copy, and it knows only the requests that Trainyard
sends. It refuses what ONTAP refuses of them: a name that exists, deleting a mounted volume, one with clones or a
snapshot with a clone, and a size that is too small. ONTAP refuses more."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets.storage.ontap_driver import OntapConfig
from tests.served_storage import Answer, ServedStorage, served

USER, PASSWORD, SVM = "trainyard", "a password of the tests", "svm1"
ONE_MIB = 1 << 20
ROOT = {"name": "svm1_root", "uuid": str(uuid4()), "svm": {"name": SVM}, "is_svm_root": "true"}


class Refused(Exception):
    """An error with a code of ONTAP's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message}


class ServedOntap(ServedStorage):
    """One SVM. `looks`: how often a job must be read before it ends; `next_job_error`: the error with which the
    next one ends."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.volumes: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        # Looks at a job before it ends; the error of the next job.
        self.looks = 1
        self.next_job_error: dict[str, str] | None = None
        self.credentials = directory / "ontap.ini"
        self.credentials.write_text(f"[default]\nusername = {USER}\npassword = {PASSWORD}\n")

    def config(self, **more: Any) -> OntapConfig:
        """Return the storage class's configuration for this SVM. `more`: fields to replace."""
        fields = {"credentials": str(self.credentials), "ca_file": str(self.certificate), **more}
        return OntapConfig("127.0.0.1", self.port, SVM, "aggr1", "", **fields)

    def statement(self) -> dict[str, Any]:
        """Return the configuration of a storage class for this SVM as an admin writes it."""
        files = {"credentials": str(self.credentials), "ca_file": str(self.certificate)}
        about = {"driver": "ontap", "mount_root": str(self.namespace), "endpoint": self.endpoint}
        return {**about, "svm": SVM, "aggregate": "aggr1", **files}

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, headers: Any) -> Answer:
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if headers.get("Authorization") != wanted:
            return 401, {"error": {"message": "User is not authorized.", "code": "6691623"}}, {}
        match method, *path.strip("/").split("/")[1:]:
            case "GET", "cluster", "jobs", uuid:
                return 200, self._job(uuid), {}
            case "GET", "storage", "volumes":
                return self._listed((ROOT, *self.volumes.values()), query)
            case "GET", "storage", "volumes", volume, "snapshots":
                found = [one for one in self.snapshots.values() if volume in ("*", one["volume"]["uuid"])]
                return self._listed(found, query)
            case "POST", "storage", "volumes":
                return self._begun(lambda: self._create(body), f"/api/storage/volumes/?name={body['name']}")
            case "POST", "storage", "volumes", volume, "snapshots":
                return self._begun(lambda: self._take(volume, body), f"{path}/?name={body['name']}")
            case "PATCH", "storage", "volumes", uuid if uuid in self.volumes:
                return self._begun(lambda: self._change(self.volumes[uuid], body))
            case "DELETE", "storage", "volumes", uuid if uuid in self.volumes:
                return self._begun(lambda: self._delete(self.volumes[uuid]))
            case "DELETE", "storage", "volumes", _, "snapshots", uuid if uuid in self.snapshots:
                return self._begun(lambda: self._delete_snapshot(self.snapshots[uuid]))
        return 404, {"error": {"message": "entry doesn't exist", "code": "4"}}, {}

    def _begun(self, work: Any, location: str = "") -> Answer:
        """Do the work at once and answer with a job. Its result, or error, shows once it has been read `looks`
        times."""
        error, self.next_job_error = self.next_job_error, None
        if error is None:
            try:
                work()
            except Refused as refused:
                error = refused.error
        uuid = str(uuid4())
        self.jobs[uuid] = {"uuid": uuid, "error": error, "looks": self.looks}
        link = {"self": {"href": f"/api/cluster/jobs/{uuid}"}}
        return 202, {"job": {"uuid": uuid, "_links": link}}, {"Location": location} if location else {}

    def _job(self, uuid: str) -> dict[str, Any]:
        job = self.jobs[uuid]
        job["looks"] -= 1
        if job["looks"] >= 0:
            return {"uuid": uuid, "state": "running", "message": "Processing"}
        if job["error"]:
            code, message = int(job["error"]["code"]), job["error"]["message"]
            return {"uuid": uuid, "state": "failure", "code": code, "message": message, "error": job["error"]}
        return {"uuid": uuid, "state": "success", "code": 0, "message": "Complete: Successful"}

    def _listed(self, rows: Any, query: dict[str, str]) -> Answer:
        wanted = {key: value for key, value in query.items() if key not in ("fields", "max_records")}
        found = [one for one in rows if all(_fits(one, key, value) for key, value in wanted.items())]
        return 200, {"records": found, "num_records": len(found)}, {}

    def named(self, name: str) -> dict[str, Any]:
        return next(one for one in self.volumes.values() if one["name"] == name)

    def _create(self, body: dict[str, Any]) -> None:
        if any(one["name"] == body["name"] for one in self.volumes.values()):
            raise Refused("917927", f'Duplicate volume name "{body["name"]}" in SVM "{SVM}".')
        volume = {"uuid": str(uuid4()), "state": "online", **body, "nas": dict(body.get("nas") or {})}
        clone = body.get("clone")
        if clone:
            parent = self.named(clone["parent_volume"]["name"])
            base = self._base(parent, clone["parent_snapshot"]["name"])
            self.fill(volume["name"], base["uuid"])
            volume["size"] = parent["size"]
        else:
            if not body.get("aggregates") or body["size"] < 20 * ONE_MIB:
                raise Refused("917534", "The volume size or the aggregate is not valid.")
            self.fill(volume["name"])
        self.volumes[volume["uuid"]] = volume
        if clone:
            # a clone shows the snapshot that it is made of as one of its own
            uuid = str(uuid4())
            self.snapshots[uuid] = {**base, "uuid": uuid, "volume": _link(volume)}
            self.fill(uuid, base["uuid"])
        if volume["nas"].get("path"):
            self.show(volume["name"])

    def _base(self, parent: dict[str, Any], name: str) -> dict[str, Any]:
        for one in self.snapshots.values():
            if (one["volume"]["uuid"], one["name"]) == (parent["uuid"], name):
                return one
        raise Refused("1638600", "The Snapshot copy does not exist.")

    def _take(self, volume: str, body: dict[str, Any]) -> None:
        row = self.volumes[volume]
        uuid, size = str(uuid4()), sum(one.stat().st_size for one in self.where(row["name"]).rglob("*"))
        self.fill(uuid, row["name"])
        self.snapshots[uuid] = {
            "uuid": uuid,
            **body,
            "volume": _link(row),
            "svm": {"name": SVM},
            "size": size,
        }

    def _change(self, volume: dict[str, Any], body: dict[str, Any]) -> None:
        if "size" in body and body["size"] < 20 * ONE_MIB:
            raise Refused("917534", "New volume size is too small to hold the current file system.")
        path = (body.get("nas") or {}).get("path")
        if path is not None and bool(path) != bool(volume["nas"].get("path")):
            (self.show if path else self.hide)(volume["name"])
        nas = {**volume["nas"], **(body.pop("nas", None) or {})}
        volume.update(body, nas=nas)

    def _delete(self, volume: dict[str, Any]) -> None:
        if volume["nas"].get("path"):
            raise Refused("917536", f"Volume {volume['name']} is mounted at {volume['nas']['path']}.")
        if any(_parent(one) == volume["name"] for one in self.volumes.values()):
            raise Refused("524615", "Failed to delete volume because it has one or more clones.")
        for uuid in [key for key, one in self.snapshots.items() if one["volume"]["uuid"] == volume["uuid"]]:
            self.erase(uuid)
            del self.snapshots[uuid]
        self.erase(volume["name"])
        del self.volumes[volume["uuid"]]

    def _delete_snapshot(self, snapshot: dict[str, Any]) -> None:
        for one in self.volumes.values():
            made_of = (one.get("clone") or {}).get("parent_snapshot", {}).get("name")
            if (_parent(one), made_of) == (snapshot["volume"]["name"], snapshot["name"]):
                raise Refused("1638543", "Failed to delete Snapshot copy because it has an owner.")
        self.erase(snapshot["uuid"])
        del self.snapshots[snapshot["uuid"]]


def _parent(volume: dict[str, Any]) -> str | None:
    return (volume.get("clone") or {}).get("parent_volume", {}).get("name")


def _link(volume: dict[str, Any]) -> dict[str, str]:
    return {"name": volume["name"], "uuid": volume["uuid"]}


def _fits(row: dict[str, Any], key: str, pattern: str) -> bool:
    found: Any = row
    for part in key.split("."):
        found = (found or {}).get(part)
    return found is not None and fnmatchcase(str(found), pattern)


@contextmanager
def served_ontap(directory: Path) -> Iterator[ServedOntap]:
    """Context manager with a running server of an empty SVM."""
    ontap = ServedOntap(directory)
    with served(ontap):
        yield ontap
