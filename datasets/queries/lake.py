"""The lake of a project. Each project has its own: whether a content is there says nothing about other projects, and
what a project keeps is what its folder holds."""

import threading
from collections import OrderedDict

from django.conf import settings

from controlplane.models import Project
from datasets.manifests import Manifest, decode
from datasets.storage.folder import FolderLake

KEPT_FILES = 2_000_000  # of manifests that a process keeps; some 150 bytes each

_lakes: dict[int, FolderLake] = {}
_manifests: OrderedDict[str, Manifest] = OrderedDict()
_lock = threading.Lock()


def lake_of(project: Project) -> FolderLake:
    """Return the project's lake. Raises Blocked."""
    with _lock:
        if project.pk not in _lakes:
            _lakes[project.pk] = FolderLake(settings.LAKE_DIR / str(project.pk))
        return _lakes[project.pk]


def manifest_named(project: Project, name: str) -> Manifest:
    """Return a manifest of the project's lake. Raises ContentMissing."""
    with _lock:
        if name in _manifests:
            _manifests.move_to_end(name)
            return _manifests[name]
    manifest = decode(lake_of(project).manifest(name))
    with _lock:
        _manifests[name] = manifest
        while len(_manifests) > 1 and sum(map(len, _manifests.values())) > KEPT_FILES:
            _manifests.popitem(last=False)
    return manifest
