"""All job kinds. To add a kind, write one module in this package and add one entry here."""

from jobs.kinds.base import Kind
from jobs.kinds.elastic import Elastic
from jobs.kinds.interactive import Interactive
from jobs.kinds.mpi import Mpi
from jobs.kinds.train import Train

KINDS: dict[str, Kind] = {kind.name: kind for kind in (Train(), Interactive(), Mpi(), Elastic())}
DEFAULT = Train()
# Kinds for which the project form asks for node pools.
POOL_KINDS = tuple(kind for kind in KINDS.values() if kind.pools_label)


def kind_named(name: str) -> Kind | None:
    """Return the kind with this name, or None."""
    return KINDS.get(name)
