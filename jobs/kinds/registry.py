"""All kinds of jobs. A new kind is one module in this package and one entry here."""

from jobs.kinds.base import Kind
from jobs.kinds.elastic import Elastic
from jobs.kinds.interactive import Interactive
from jobs.kinds.mpi import Mpi
from jobs.kinds.train import Train

KINDS: dict[str, Kind] = {kind.name: kind for kind in (Train(), Interactive(), Mpi(), Elastic())}
DEFAULT = Train()
# Those for which a project names node pools in its form.
POOL_KINDS = tuple(kind for kind in KINDS.values() if kind.pools_label)


def kind_named(name: str) -> Kind | None:
    """Return the kind, or None when there is no such kind."""
    return KINDS.get(name)
