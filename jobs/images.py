"""The image catalogue, and warnings about a job's image before it runs."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from controlplane.config.images import ADDED, BUILT_IN, Catalogue, load_catalogue
from controlplane.engines.kinds import engine_kind, engine_kinds
from controlplane.fields import port
from controlplane.models import Project
from jobs.lifecycle import SUCCEEDED
from jobs.models import Job

logger = logging.getLogger(__name__)
RECENT_JOBS, RECENT_IMAGES = 100, 12


def installed_images() -> Catalogue:
    """Return the built-in images and those of STATE_DIR/images.toml. An unreadable file, for example while an admin
    edits it, is ignored with a warning in the log."""
    path = settings.STATE_DIR / ADDED
    try:
        return load_catalogue(BUILT_IN, path)
    except (OSError, ValueError) as error:
        logger.warning("images.toml cannot be read, its images are ignored: %s", error)
        return load_catalogue(BUILT_IN)


def takes_command_of_image(project: Project, spec: Mapping[str, Any]) -> bool:
    """Return whether the catalogue supplies the job's command: it has an image and no command, and its cluster runs
    no containers."""
    return (
        bool(spec["image"] and not spec["command"])
        and not engine_kind(project.cluster.engine).runs_containers
    )


def fill_ports(project: Project, specs: Iterable[dict[str, Any]]) -> None:
    """Add the port on which its image serves to the spec of each job that declares no ports and whose command the
    catalogue supplies."""
    without = [spec for spec in specs if not spec["ports"] and takes_command_of_image(project, spec)]
    if not without:
        # Most submissions need no catalogue, which is read from files.
        return
    catalogue = installed_images()
    for spec in without:
        image = catalogue.find(spec["image"])
        if image and image.port:
            spec["ports"] = [port({"port": image.port})]


def known_images(jobs: QuerySet[Job]) -> list[str]:
    """Return images to suggest: the catalogue's, then those of the newest of `jobs` that succeeded on clusters that run
    containers; elsewhere a name outside of the catalogue is no image, only a label. One query."""
    engines = [name for name, kind in engine_kinds().items() if kind.runs_containers]
    done = jobs.filter(state=SUCCEEDED, project__cluster__engine__in=engines)
    recent = done.order_by("-submit_rank").values_list("spec__image", flat=True)
    used = dict.fromkeys(image for image in recent[:RECENT_JOBS] if image)
    catalogue = (image.name for image in installed_images().images)
    return list(dict.fromkeys([*catalogue, *list(used)[:RECENT_IMAGES]]))


def image_notice(project: Project, spec: Mapping[str, Any]) -> str | None:
    """Return a warning if the job's image is unknown and its command will run without it, else None."""
    return image_notices(project, [spec])[0]


def image_notices(project: Project, specs: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return for each job what `image_notice` returns; reads the catalogue at most once, and only if a job needs it."""
    cluster = project.cluster
    if engine_kind(cluster.engine).runs_containers or not any(map(_needs_catalogue, specs)):
        return [None] * len(specs)
    catalogue = installed_images()
    return [_notice(spec, catalogue, cluster.name) if _needs_catalogue(spec) else None for spec in specs]


def _needs_catalogue(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("image") and spec.get("command"))


def _notice(spec: Mapping[str, Any], catalogue: Catalogue, cluster: str) -> str | None:
    name = str(spec["image"])
    if catalogue.find(name) is not None:
        return None
    return (
        f"{name} is not in the image catalogue, and {cluster} runs no containers: the command runs with that"
        " machine's own programs."
    )
