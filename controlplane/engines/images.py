"""Resolve images of the catalogue, for engines without containers."""

from __future__ import annotations

from controlplane.config.images import Catalogue, ImageUnknown
from controlplane.engines.base import IMAGE_UNKNOWN, EngineRefused, PodSpec


def command_line(catalogue: Catalogue, spec: PodSpec) -> tuple[str, ...]:
    """Return the command line of the pod, by `Catalogue.command_line`. Raise EngineRefused(IMAGE_UNKNOWN) if neither
    the job nor its image has a command."""
    try:
        return catalogue.command_line(spec.image, spec.command, spec.args)
    except ImageUnknown as error:
        raise EngineRefused(IMAGE_UNKNOWN, str(error)) from error
