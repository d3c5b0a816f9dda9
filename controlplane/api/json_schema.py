"""Helpers that build JSON schemas as plain data."""

from typing import Any

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}
UUID: Schema = {"type": "string", "format": "uuid"}
OBJECT: Schema = {"type": "object", "additionalProperties": True}


def ref(component: str) -> Schema:
    """Return a schema that refers to the OpenAPI component of this name."""
    return {"$ref": f"#/components/schemas/{component}"}


def nullable(schema: Schema) -> Schema:
    """Return the schema of a value that may also be null."""
    kind = schema.get("type")
    return (
        {**schema, "type": [kind, "null"]} if isinstance(kind, str) else {"anyOf": [schema, {"type": "null"}]}
    )


def listed(items: Schema) -> Schema:
    """Return the schema of a list of `items`."""
    return {"type": "array", "items": items}


def record(about: str, **properties: Schema) -> Schema:
    """Return the schema of an object with exactly these fields, all required. `about`: its description."""
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def partial(schema: Schema, *optional: str) -> Schema:
    """Return the schema of a record in which these fields are optional."""
    return schema | {"required": [name for name in schema["required"] if name not in optional]}
