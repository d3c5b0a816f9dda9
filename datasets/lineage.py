"""What a model was made of, as a graph: ingredient -> run -> product. Pure.

The `identity` of an ingredient that cannot change is the hash of a manifest, of a code tree, of the parameters or of a
lock file, the digest of an image, or the id of a snapshot. It is "" where the thing may have changed since: an image
named without a digest, a volume.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

ARTIFACT, RUN, VERSION, SNAPSHOT, VOLUME = "artifact", "job", "version", "snapshot", "volume"
CODE, IMAGE, ENVIRONMENT, PARAMETERS, SEED = "code", "image", "environment", "parameters", "seed"
# Nodes of one graph.
NODES_MOST = 120
LOCK_FILES = frozenset(
    {"uv.lock", "poetry.lock", "Pipfile.lock", "requirements.txt", "environment.yml", "conda-lock.yml"}
)
_SEEDS = ("SEED", "RANDOM_SEED", "PYTHONHASHSEED")
_SEED_OPTION = re.compile(r"--(?:random[-_])?seed(?:=(.*))?", re.DOTALL)
_DIGEST = re.compile(r"@(sha256:[0-9a-f]{64})$")


@dataclass(frozen=True, slots=True)
class Node:
    """One thing. `key` is unique in a graph; `id` is the row's, "" for what has no page of its own."""

    kind: str
    id: str
    name: str
    identity: str = ""
    detail: str = ""
    project: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """`source` went into `target`, by key. `role`: how, such as a mount path. `identity`: of what went in; of a run, of
    what it made."""

    source: str
    target: str
    identity: str = ""
    role: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes and edges within reach of the node `start`. `is_cut`: some were left out for their number."""

    start: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]
    is_cut: bool = False


def node(kind: str, key: str, name: str, **fields: str) -> Node:
    """Return a node whose key is made of its kind and id."""
    return Node(kind, key, name, key=f"{kind}:{key}", **fields)


class Builder:
    """Collects nodes and edges, each once."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: dict[tuple[str, str, str], Edge] = {}

    def add(self, found: Node) -> Node:
        """Add a node, unless its key is there."""
        return self.nodes.setdefault(found.key, found)

    def link(self, source: Node, target: Node, role: str = "") -> None:
        """Say that one went into the other."""
        self.add(source)
        self.add(target)
        identity = target.identity if source.kind == RUN else source.identity
        edge = Edge(source.key, target.key, identity, role)
        self.edges.setdefault((edge.source, edge.target, role), edge)

    def graph(self, start: str, most: int = NODES_MOST) -> Graph:
        """Return what leads to `start` and what follows from it, the nearest first, at most `most` nodes."""
        after, before = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
        for source, target, _ in self.edges:
            after[source].append(target)
            before[target].append(source)
        kept = {start: None} | dict.fromkeys(_reached(start, before, most))
        # Products of a run that is only an ancestor are no part of the answer; those of descendants are, with all that
        # went into them.
        for key in _reached(start, after, most):
            kept.setdefault(key)
            kept.update(dict.fromkeys(before[key]))
        keys = list(kept)[:most]
        shown = set(keys)
        edges = [one for one in self.edges.values() if {one.source, one.target} <= shown]
        return Graph(start, [self.nodes[key] for key in keys], edges, len(kept) > most)


def _reached(start: str, nexts: Mapping[str, Sequence[str]], most: int) -> Iterator[str]:
    """Yield what can be reached, nearest first, a little more than `most`."""
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
    """Yield (node, role) of what a job's spec says went into it, besides datasets and volumes. `locks`: path and
    SHA-256 of the lock files in its code."""
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
    """Return what of a spec decides what a run computes, besides code, data and image."""
    names = ("kind", "command", "args", "env", "working_dir", "workers", "gpus")
    return {name: spec.get(name) for name in names}


def seed_of(spec: Mapping[str, Any]) -> str | None:
    """Return the seed that a job's command or environment states, or None."""
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
