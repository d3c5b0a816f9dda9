"""The description of the API, and the answer to every address that it does not have."""

from controlplane.access import NotVisible
from controlplane.api.json_schema import OBJECT
from controlplane.api.openapi import RouteSchema, openapi_document
from controlplane.api.operations import Answer, ApiView, Call, operation


class OpenApi(ApiView):
    """This document."""

    @operation("The OpenAPI document", answer=OBJECT)
    def get(self, call: Call) -> Answer:
        document = openapi_document()
        return Answer(document, revision=document["info"])


class Nowhere(ApiView):
    """404 as a problem, to those who are signed in."""

    schema = None

    @operation("Nothing", answer=OBJECT)
    def get(self, call: Call, rest: str) -> Answer:
        raise NotVisible("There is nothing at this address; see /api/v1/openapi.json.")

    post = put = patch = delete = get


__all__ = ["Nowhere", "OpenApi", "RouteSchema"]
