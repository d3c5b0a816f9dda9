"""Whether the engines report anything that a cycle must examine, without a look at the rows: for loops without
unfinished work."""

import logging

from controlplane.engines.base import EngineUnreachable
from controlplane.loop.cluster_context import context_of
from controlplane.loop.engine_pool import attached_clusters, engine_for
from controlplane.models import Cluster

logger = logging.getLogger(__name__)


def have_engines_changed() -> bool:
    """Return whether an engine reports a pod, or other nodes than at the last call of this process; True also for the
    first call, and for an engine that does not answer. One query."""
    # Every engine is asked, also after a change of another: the next call compares with the answers.
    answers = [_has_changed(cluster) for cluster in attached_clusters()]
    return any(answers)


def _has_changed(cluster: Cluster) -> bool:
    context = context_of(cluster)
    before, context.seen_nodes = context.seen_nodes, None
    try:
        engine = engine_for(cluster)
        nodes, pods = engine.nodes(), engine.pods()
    except EngineUnreachable:
        # Not logged here, because the cycle reports an unreachable engine.
        return True
    except Exception:
        logger.exception("the report of cluster %s could not be read; a cycle tries again", cluster.name)
        return True
    context.seen_nodes = nodes
    return nodes != before or bool(pods)
