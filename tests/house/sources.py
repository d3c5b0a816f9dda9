"""What the house tests read: the tree's Python files, their syntax trees, and who imports whom."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("controlplane", "jobs", "datasets", "dashboards", "workloads")
ALL = (*PRODUCT, "tests", "bench", "tools")


@cache
def python_files(tops: tuple[str, ...] = ALL) -> tuple[Path, ...]:
    """Our Python files below these directories, manage.py among them."""
    found = [path for top in tops for path in (ROOT / top).rglob("*.py")]
    return (*sorted(found), ROOT / "manage.py")


@cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax tree."""
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    """The dotted name that imports this file."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def known_modules() -> frozenset[str]:
    """Every module of ours."""
    return frozenset(map(module_of, python_files()))


def imports_of(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Every module that is imported, anywhere in the file, with its line. Types-only imports count too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield (full if full in known_modules() else node.module), node.lineno
