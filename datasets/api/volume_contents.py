"""The files of a volume over REST: listed and downloaded, while jobs may write them."""

from django.http import HttpResponseBase

from controlplane.access import NotVisible
from controlplane.api import query
from controlplane.api.json_schema import BOOLEAN, listed, record, ref
from controlplane.api.operations import Answer, ApiView, Call, operation
from datasets.access import volume_for
from datasets.api.contents import BINARY
from datasets.queries.volume_files import BYTES, file_response, list_files
from datasets.storage.base import ContentMissing

LISTED_MOST = 1000


class VolumeFiles(ApiView):
    """Endpoint of a directory listing of a volume."""

    @operation(
        "List a directory of a volume, as it is now",
        answer=record("In the order of the names.", results=listed(ref("VolumeFile")), has_more=BOOLEAN),
        query={
            "directory": query.text("The directory; the top without it."),
            "after": query.text("Go on after this name."),
            "limit": query.whole(1, LISTED_MOST, "How many at most.", default=100),
        },
    )
    def get(self, call: Call, volume_id: str) -> Answer:
        volume, asked = volume_for(call.actor, volume_id), call.query
        try:
            rows, has_more = list_files(
                volume, asked["directory"] or "", asked["after"] or "", asked["limit"]
            )
        except ContentMissing as error:
            raise NotVisible(str(error)) from error
        return Answer({"results": rows, "has_more": has_more})


class VolumeContent(ApiView):
    """Endpoint of the content of one file of a volume."""

    @operation(
        "Download a file of a volume",
        answer=BINARY,
        gives=BYTES,
        query={"path": query.text("The file's path in the volume.")},
    )
    def get(self, call: Call, volume_id: str) -> HttpResponseBase:
        volume = volume_for(call.actor, volume_id)
        try:
            return file_response(volume, call.query["path"] or "")
        except ContentMissing as error:
            raise NotVisible(str(error)) from error
