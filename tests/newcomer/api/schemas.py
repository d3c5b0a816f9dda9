"""Registers a component of the OpenAPI document."""

from controlplane.api.json_schema import STRING, record

COMPONENTS = {"NewcomerVolume": record("A volume.", name=STRING)}
