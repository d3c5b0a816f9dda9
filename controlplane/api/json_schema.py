"""The vocabulary of JSON schemas, as plain data."""

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
    """Return the schema that refers to a component."""
    return {"$ref": f"#/components/schemas/{component}"}


def nullable(schema: Schema) -> Schema:
    """Return the schema, or null."""
    kind = schema.get("type")
    return (
        {**schema, "type": [kind, "null"]} if isinstance(kind, str) else {"anyOf": [schema, {"type": "null"}]}
    )


def listed(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def record(about: str, **properties: Schema) -> Schema:
    """Return the schema of an object that has every one of these fields and no other."""
    return {
        "type": "object",
        "description": about,
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def partial(schema: Schema, *optional: str) -> Schema:
    """Return the record without the duty to have these fields."""
    return schema | {"required": [name for name in schema["required"] if name not in optional]}
