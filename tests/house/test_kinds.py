"""Kinds of engines and of jobs answer for themselves: no code elsewhere branches on, or lists, their names."""

import ast
import re
from collections.abc import Iterator

import pytest

from controlplane.engines.kinds import engine_kinds
from jobs.kinds.registry import KINDS
from tests.house.sources import PRODUCT, ROOT, module_of, python_files, tree_of

NAMES = {*engine_kinds(), *KINDS}
OWN = ("jobs.kinds", "controlplane.engines")
# The demo's scenario says which jobs it submits.
SCENARIO = {"controlplane.cli.commands.demo"}
SUBJECT = re.compile(r"\b(kind|engine)s?\b")
MARKUP = re.compile(
    rf"\b(?:kind|engine)\w*(?:\.name)?\s*[!=]==?\s*[\"'](?:{'|'.join(sorted(NAMES))})[\"']", re.IGNORECASE
)


def is_name(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(is_name(one) for one in node.elts)
    return isinstance(node, ast.Constant) and node.value in NAMES


def branches(tree: ast.AST) -> Iterator[ast.AST]:
    """Comparisons of a kind with a name, cases of a match, and tables that have kinds as keys."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            others = " ".join(ast.unparse(side) for side in sides if not is_name(side))
            if any(is_name(side) for side in sides) and SUBJECT.search(others.replace("_", " ")):
                yield node
        elif isinstance(node, ast.Dict) and len(node.keys) > 1:
            if all(key is not None and is_name(key) for key in node.keys):
                yield node
        elif isinstance(node, ast.Match) and SUBJECT.search(ast.unparse(node.subject)):
            yield node


def test_no_module_branches_on_the_name_of_a_kind() -> None:
    found = [
        f"{module_of(path)}:{getattr(node, 'lineno', 0)} {ast.unparse(node)[:80]}"
        for path in python_files(PRODUCT)
        if not module_of(path).startswith(OWN) and module_of(path) not in SCENARIO
        for node in branches(tree_of(path))
    ]
    assert not found, "ask the kind instead: " + "; ".join(found)


def test_no_template_and_no_script_branches_on_the_name_of_a_kind() -> None:
    files = [*(ROOT / "dashboards").rglob("*.html"), *(ROOT / "static" / "js").glob("*.js")]
    assert len(files) > 50
    found = [f"{path.name}: {hit[0]}" for path in files for hit in MARKUP.finditer(path.read_text())]
    assert not found, "ask the kind instead: " + "; ".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "if cluster.engine == 'kubernetes': pass",
        "x = 1 if job.kind != 'interactive' else 2",
        "y = engine_name in ('local', 'memory')",
        "ORDER = {'train': 50, 'mpi': 60}",
    ],
)
def test_the_rule_bites(line: str) -> None:
    assert list(branches(ast.parse(line)))


@pytest.mark.parametrize("line", ["need == 'memory'", "host == 'local'", "{'memory': 1, 'cpus': 2}"])
def test_the_rule_leaves_other_words_alone(line: str) -> None:
    assert not list(branches(ast.parse(line)))


def test_the_rule_bites_in_markup() -> None:
    assert MARKUP.search('{% if job.kind == "train" %}')
    assert MARKUP.search("if (kind.name === 'mpi') {}")
    assert not MARKUP.search('{% if topic.kind == "queue" %}')
