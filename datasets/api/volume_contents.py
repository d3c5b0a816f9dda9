"""REST views that list and download the files of a volume while jobs may write to it."""

from typing import Any

from django.http import HttpResponseBase

from controlplane.access import NotVisible
from controlplane.api import query
from controlplane.api.json_schema import BOOLEAN, listed, record, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from controlplane.api.problems import Problem
from datasets.access import volume_for
from datasets.actions.volume_readings import ask_for
from datasets.api.contents import BINARY
from datasets.models import Volume
from datasets.queries.volume_files import BYTES, LISTED_MOST, BeingRead, file_response, list_files
from datasets.storage.base import Blocked, ContentMissing


class _Contents(ApiView):
    """Answers 409 `being_read` while a pod reads the files, and 409 with the reason if it cannot."""

    def read(self, volume: Volume, reads: Any) -> Any:
        try:
            return reads(volume)
        except ContentMissing as error:
            raise NotVisible(str(error)) from error
        except Blocked as blocked:
            raise Problem(409, blocked.code, blocked.detail) from blocked
        except BeingRead as waits:
            ask_for(volume, waits)
            raise Problem(409, "being_read", str(waits), headers={"Retry-After": "1"}) from waits


class VolumeFiles(_Contents):
    """Entries of one directory of a volume: as they are now or, if only pods can read it, as a pod read them within
    a minute."""

    @operation(
        "List a directory of a volume, as it is now; on Kubernetes as a pod saw it at most a minute ago",
        answer=record("Sorted by name.", results=listed(ref("VolumeFile")), has_more=BOOLEAN),
        query={
            "directory": query.text("The directory; by default the top."),
            "after": query.text("Continue after this name."),
            "limit": query.whole(1, LISTED_MOST, "Maximum number of results.", default=100),
        },
    )
    def get(self, call: Call, volume_id: str) -> Answer:
        volume, asked = volume_for(call.actor, volume_id), call.query
        given = (asked["directory"] or "", asked["after"] or "", asked["limit"])
        rows, has_more = self.read(volume, lambda one: list_files(one, *given))
        return Answer({"results": rows, "has_more": has_more})


class VolumeContent(_Contents):
    """Content of one file of a volume."""

    @operation(
        "Download a file of a volume; on Kubernetes of at most 4 MiB",
        answer=BINARY,
        gives=BYTES,
        query={"path": query.text("The file's path in the volume.")},
    )
    def get(self, call: Call, volume_id: str) -> HttpResponseBase:
        volume, path = volume_for(call.actor, volume_id), call.query["path"] or ""
        response: HttpResponseBase = self.read(volume, lambda one: file_response(one, path))
        return response
