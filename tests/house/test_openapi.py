"""The OpenAPI document in docs/reference is the code's."""

import orjson

from controlplane.api.openapi import openapi_document
from controlplane.management.commands.openapi import PATH


def test_the_committed_document_is_what_the_routes_say() -> None:
    committed = orjson.loads(PATH.read_bytes())
    generated = orjson.loads(orjson.dumps(openapi_document()))
    changed = {
        path
        for path in {*committed["paths"], *generated["paths"]}
        if committed["paths"].get(path) != generated["paths"].get(path)
    }
    assert not changed, "run `make reference`"
    assert committed == generated, "run `make reference`"
