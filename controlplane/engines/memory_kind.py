"""The declaration of the memory engine: pods are records in this process, for tests, benchmarks and replays."""

from controlplane.engines.kinds import EngineKind
from controlplane.engines.node_settings import entry_reader, read_nodes

KIND = EngineKind(
    name="memory",
    opens="controlplane.engines.memory:shared_engine",
    read_settings=read_nodes,
    read_entry=entry_reader(may_detect=False),
    places_code=True,
    mounts_volumes=True,
    keeps_outputs=True,
)
