"""The Python files of the repository, their syntax trees, and their imports, for the house tests."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("controlplane", "jobs", "datasets", "dashboards", "workloads")
ALL = (*PRODUCT, "tests", "bench", "tools")


@cache
def python_files(tops: tuple[str, ...] = ALL) -> tuple[Path, ...]:
    """Return all Python files below these directories, and manage.py."""
    found = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    return (*sorted(found), ROOT / "manage.py")


@cache
def tree_of(path: Path) -> ast.Module:
    """Return a file's syntax tree; cached."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    """Return the name by which this file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def known_modules() -> frozenset[str]:
    """Return the names of all modules of the repository."""
    return frozenset(map(module_of, python_files()))


def imports_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (module, line) for every import in the file, including those inside functions and those for types
    only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in known_modules() else node.module), node.lineno
