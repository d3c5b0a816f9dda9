"""Small functions, short files, no drawer for leftovers."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.house.sources import ALL, ROOT, python_files, tree_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
LONGEST_FUNCTION = 60
LONGEST_FILE = 500
LEFTOVERS = {
    "utils",
    "util",
    "helpers",
    "helper",
    "misc",
    "common_utils",
    "manager",
    "managers",
    "service",
    "services",
}
TEXT_SUFFIXES = (".js", ".css", ".html")


@cache
def functions_of_files() -> dict[Path, list[Function]]:
    """Every function of ours by file, migrations apart. Functions are in statements, so no expression is visited."""
    return {
        path: list(functions_below(tree_of(path)))
        for path in python_files(ALL)
        if "migrations" not in path.parts
    }


def functions_below(node: ast.AST) -> Iterator[Function]:
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, name, ()):
            if isinstance(child, Function):
                yield child
            yield from functions_below(child)


def size_of(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_files_have_at_most_500_lines() -> None:
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in python_files(ALL)}
    long = [
        f"{path.relative_to(ROOT)} has {count} lines" for path, count in lines.items() if count > LONGEST_FILE
    ]
    assert not long, "split by what they do:\n" + "\n".join(long)


def test_functions_have_at_most_60_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {size_of(node)} lines"
        for path, functions in functions_of_files().items()
        for node in functions
        if size_of(node) > LONGEST_FUNCTION
    ]
    assert not long, "\n".join(long)


def test_functions_are_small_on_the_whole() -> None:
    sizes = sorted(size_of(node) for functions in functions_of_files().values() for node in functions)
    assert sizes[len(sizes) * 9 // 10] <= 30, "the 90th percentile of function lengths is above 30 lines"


def test_no_file_is_a_drawer_for_leftovers() -> None:
    drawers = [str(path.relative_to(ROOT)) for path in python_files(ALL) if path.stem in LEFTOVERS]
    assert not drawers, f"name these by what they do: {', '.join(drawers)}"


def test_scripts_styles_and_templates_stay_short_too() -> None:
    files = [
        path
        for top in ("static", "dashboards")
        for path in (ROOT / top).rglob("*")
        if path.suffix in TEXT_SUFFIXES
    ]
    own = [path for path in files if "vendor" not in path.parts]
    long = [
        str(path.relative_to(ROOT))
        for path in own
        if path.read_text(encoding="utf-8").count("\n") > LONGEST_FILE
    ]
    assert not long, f"more than {LONGEST_FILE} lines: {', '.join(long)}"
