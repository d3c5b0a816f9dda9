"""The OpenAPI document, and the response for unknown addresses."""

from controlplane.access import NotVisible
from controlplane.api.json_schema import OBJECT
from controlplane.api.operations import Answer, ApiView, Call, operation


class OpenApi(ApiView):
    """The OpenAPI document of this API. The first request to a process takes about a second."""

    @operation("The OpenAPI document", answer=OBJECT)
    def get(self, call: Call) -> Answer:
        # Imported here, because drf-spectacular takes 20 MB, and few processes are asked for the document.
        from controlplane.api.openapi import openapi_document

        document = openapi_document()
        return Answer(document, revision=document["info"])


class Nowhere(ApiView):
    """Answers unknown addresses: 404 as a problem document, 401 for callers who are not signed in."""

    schema = None

    @operation("Nothing", answer=OBJECT)
    def get(self, call: Call, rest: str) -> Answer:
        raise NotVisible("There is nothing at this address; see /api/v1/openapi.json.")

    post = put = patch = delete = get
