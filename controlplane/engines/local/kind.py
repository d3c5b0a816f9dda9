"""The declaration of the local engine: pods are processes of this machine, nodes are declared or detected through
NVML."""

from controlplane.engines.kinds import EngineKind
from controlplane.engines.node_settings import entry_reader, read_nodes

KIND = EngineKind(
    name="local",
    opens="controlplane.engines.local.engine:LocalEngine",
    read_settings=read_nodes,
    read_entry=entry_reader(may_detect=True),
    places_code=True,
    mounts_volumes=True,
    keeps_outputs=True,
    keeps_projects=False,
)
