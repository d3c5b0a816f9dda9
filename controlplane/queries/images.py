"""What there is to say of a job's image before it runs, on clusters where images are names of the catalogue."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings

from controlplane.catalogue import ADDED, BUILT_IN, Catalogue, load_catalogue
from controlplane.cluster_settings import WITH_CREDENTIALS
from controlplane.models import Project

logger = logging.getLogger(__name__)


def installed_images() -> Catalogue:
    """The images that come along and those that this instance's admins added; without the latter while their file
    cannot be read, since somebody edits it."""
    path = settings.STATE_DIR / ADDED
    try:
        return load_catalogue(BUILT_IN, path)
    except (OSError, ValueError) as error:
        logger.warning("the images that admins added are left out: %s", error)
        return load_catalogue(BUILT_IN)


def image_notice(project: Project, spec: Mapping[str, Any]) -> str | None:
    """Return the warning that a job's image is unknown and its command runs without it, or None."""
    return image_notices(project, [spec])[0]


def image_notices(project: Project, specs: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return that of each job; the catalogue is read once for all of them, and not at all where no job needs it."""
    cluster = project.cluster
    images = [str(spec["image"]) if spec.get("image") and spec.get("command") else None for spec in specs]
    if cluster.engine in WITH_CREDENTIALS or not any(images):
        return [None] * len(specs)
    catalogue = installed_images()
    return [
        f"{image} is not in the image catalogue, and {cluster.name} runs no containers: the command runs with that"
        " machine's own programs."
        if image is not None and catalogue.find(image) is None
        else None
        for image in images
    ]
