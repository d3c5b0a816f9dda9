"""Compute the space used by the caches of one location, from their manifests. Pure."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import chain
from operator import truediv
from typing import Generic, TypeVar

from datasets.manifests import Manifest

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Charges(Generic[K]):
    """The space used by the caches of one location. `used_bytes`: all contents, each counted once. `by_cache`: the
    bytes charged to each cache: a content shared by n caches is charged to each of them by 1/n. The charges are
    rounded down, so their sum is at most `used_bytes`."""

    used_bytes: int
    by_cache: Mapping[K, int]


def charges(manifests: Mapping[K, Manifest]) -> Charges[K]:
    """Return the space that caches with these manifests use at their location."""
    contents = {key: _sizes(manifest) for key, manifest in manifests.items()}
    if len(contents) < 2:
        whole = {key: sum(sizes.values()) for key, sizes in contents.items()}
        return Charges(sum(whole.values()), whole)
    # Without a line of Python for each content: a version has hundreds of thousands.
    sharing = Counter(chain.from_iterable(contents.values()))
    used: dict[bytes, int] = {}
    for sizes in contents.values():
        used |= sizes
    parts = {
        key: int(sum(map(truediv, sizes.values(), map(sharing.__getitem__, sizes))))
        for key, sizes in contents.items()
    }
    return Charges(sum(used.values()), parts)


def _sizes(manifest: Manifest) -> dict[bytes, int]:
    return dict(zip(manifest.each_digest, manifest.sizes, strict=True))
