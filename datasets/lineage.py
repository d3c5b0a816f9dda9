"""The lineage of a model as a graph: ingredient -> run -> product. Pure.

`identity` identifies the content of an ingredient that cannot change: the hash of a manifest, code tree,
parameters or lock file, the digest of an image, or the id of a snapshot. It is "" if the thing may have
changed since: an image without a digest, a volume.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ARTIFACT, RUN, VERSION, SNAPSHOT, VOLUME = "artifact", "job", "version", "snapshot", "volume"
CODE, IMAGE, ENVIRONMENT, PARAMETERS, SEED = "code", "image", "environment", "parameters", "seed"
# Limit on the nodes of one graph.
NODES_MOST = 120
LOCK_FILES = frozenset(
    {"uv.lock", "poetry.lock", "Pipfile.lock", "requirements.txt", "environment.yml", "conda-lock.yml"}
)
_SEEDS = ("SEED", "RANDOM_SEED", "PYTHONHASHSEED")
_SEED_OPTION = re.compile(r"--(?:random[-_])?seed(?:=(.*))?", re.DOTALL)
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph. `key`: unique in a graph. `id`: the row's, "" if the node has no page of its own.
    `identity`: see above, "" if unknown. `detail`: a note for users."""

    kind: str
    id: str
    name: str
    identity: str = ""
    detail: str = ""
    project: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the graph: `source` was an input of `target`; both are keys of nodes. `role`: how it was used,
    such as a mount path. `identity`: the identity of the input or, if `source` is a run, of its product `target`."""

    source: str
    target: str
    identity: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes and edges reachable from the node `start`. `is_cut`: some were omitted because of the limit."""

    start: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    is_cut: bool = False


def node(kind: str, key: str, name: str, **fields: str) -> Node:
    """Return a node with these `fields`; `key` is its id in its kind, from both of which its key in the graph is
    built."""
    return Node(kind, key, name, key=f"{kind}:{key}", **fields)


class Builder:
    """Collects nodes and edges without duplicates."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str, str], Edge] = {}

    def add(self, found: Node) -> Node:
        """Add a node, unless one with its key exists; return the node."""
        return self.nodes.setdefault(found.key, found)

    def link(self, source: Node, target: Node, role: str = "") -> None:
        """Add an edge: `source` was an input of `target`."""
        self.add(source)
        self.add(target)
        identity = target.identity if source.kind == RUN else source.identity
        edge = Edge(source.key, target.key, identity, role)
        self.edges.setdefault((edge.source, edge.target, role), edge)

    def graph(self, start: str, most: int = NODES_MOST) -> Graph:
        """Return the ancestors and descendants of `start`, and the direct inputs of its descendants, nearest first, at
        most `most` nodes."""
        after, before = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for source, target, _ in self.edges:
            after[source].append(target)
            before[target].append(source)
        kept = {start: None} | dict.fromkeys(_reached(start, before, most))
        # Other products of a run that is only an ancestor are omitted; descendants are included with all
        # their inputs.
        for key in _reached(start, after, most):
            kept.setdefault(key)
            kept.update(dict.fromkeys(before[key]))
        keys = list(kept)[:most]
        shown = set(keys)
        edges = [one for one in self.edges.values() if {one.source, one.target} <= shown]
        return Graph(start, [self.nodes[key] for key in keys], edges, len(kept) > most)


def _reached(start: str, nexts: Mapping[str, Sequence[str]], most: int) -> Iterator[str]:
    """Yield the keys reachable from `start` in breadth-first order, without `start`. `nexts`: the neighbours of each
    key. Stops after the level in which `most` is exceeded."""
    seen, waiting = {start}, [start]
    while waiting and len(seen) <= most + 1:
        following = []
        for key in waiting:
            for one in nexts[key]:
                if one not in seen:
                    seen.add(one)
                    following.append(one)
                    yield one
        waiting = following


def ingredients(
    job_id: str, spec: Mapping[str, Any], parameters_hash: str, locks: Iterable[tuple[str, str]]
) -> Iterator[tuple[Node, str]]:
    """Yield (node, role) for each input in a job's spec, except datasets and volumes. `parameters_hash`: the hash of
    `parameters`. `locks`: path and SHA-256 of the lock files in its code."""
    if spec.get("code"):
        yield _code(spec["code"]), "working directory"
    for path, digest in locks:
        yield node(ENVIRONMENT, digest, path, identity=f"sha256:{digest}"), "lock file"
    if spec.get("image"):
        found = _DIGEST.search(spec["image"])
        detail = "" if found else "named without a digest: it may have changed"
        identity = found[1] if found else ""
        yield node(IMAGE, spec["image"], spec["image"], identity=identity, detail=detail), "image"
    words = " ".join([*(spec.get("command") or ()), *(spec.get("args") or ())])
    yield (
        node(PARAMETERS, parameters_hash, words or "the image's own command", identity=parameters_hash),
        "command and environment",
    )
    if (seed := seed_of(spec)) is not None:
        yield replace(node(SEED, f"{job_id}:{seed}", seed, identity=f"seed:{seed}"), id=""), "seed"


def parameters(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a spec that determine the result of a run, except code, data and image."""
    names = ("kind", "command", "args", "env", "working_dir", "workers", "gpus")
    return {name: spec.get(name) for name in names}


def seed_of(spec: Mapping[str, Any]) -> str | None:
    """Return the random seed in a job's command or environment variables; None if there is none."""
    words = [*(spec.get("command") or ()), *(spec.get("args") or ())]
    for place, word in enumerate(words):
        if found := _SEED_OPTION.fullmatch(word):
            value = found[1] if found[1] is not None else next(iter(words[place + 1 :]), None)
            return value or None
    env = spec.get("env") or {}
    return next((str(env[name]) for name in _SEEDS if env.get(name)), None)


def _code(code: Mapping[str, Any]) -> Node:
    commit = str(code.get("commit") or "")[:12]
    name = commit or str(code["tree"]).removeprefix("sha256:")[:12]
    detail = "with uncommitted changes" if code.get("is_dirty") else ""
    return node(CODE, str(code["tree"]), name, identity=str(code["tree"]), detail=detail)
