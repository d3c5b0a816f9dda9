"""Compute the space used by the caches of one location, from their manifests. Pure."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from datasets.manifests import DIGEST_BYTES, Manifest

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
    sharing = Counter(digest for sizes in contents.values() for digest in sizes)
    used = {digest: size for sizes in contents.values() for digest, size in sizes.items()}
    parts = {
        key: int(sum(size / sharing[digest] for digest, size in sizes.items()))
        for key, sizes in contents.items()
    }
    return Charges(sum(used.values()), parts)


def _sizes(manifest: Manifest) -> dict[bytes, int]:
    digests = manifest.digests
    return {
        digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]: size
        for place, size in enumerate(manifest.sizes)
    }
