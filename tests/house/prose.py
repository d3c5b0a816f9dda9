"""The texts in the product's Python files: docstrings, comments and identifiers, with their lines."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.house.sources import tree_of

BANNED = re.compile(
    r"(?<![a-z])(tell(?:s|ing)?|told|untold|hear[sd]?|knows|breathe[sd]?|haunt(?:s|ed)|somebody|someone|nobody|anybody"
    r"|everybody|whoever|whomever|whose inside|glances?|stray(?:s|ed)|so long as)(?![a-z])"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Text(NamedTuple):
    """A docstring, comment or identifier, and the line where it begins."""

    line: int
    kind: str  # "docstring" | "comment" | "identifier"
    text: str


def docstrings(path: Path) -> Iterator[Text]:
    """Yield the docstrings of the module, its classes and functions."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Text(node.body[0].lineno, "docstring", text)


def names(path: Path) -> Iterator[Text]:
    """Yield the file's own name and each identifier that the file binds, as lower-case words."""
    yield Text(1, "identifier", in_words(path.stem))
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Text(node.lineno, "identifier", in_words(node.name))
            case ast.arg():
                yield Text(node.lineno, "identifier", in_words(node.arg))
            case ast.Name(ctx=ast.Store()):
                yield Text(node.lineno, "identifier", in_words(node.id))
            case ast.Attribute(ctx=ast.Store()):
                yield Text(node.lineno, "identifier", in_words(node.attr))


def in_words(name: str) -> str:
    """Return `someName` or `some_name` as "some name"."""
    return " ".join(_WORDS.findall(name)).lower()


def own_line_comments(path: Path) -> Iterator[Text]:
    """Yield the comments that have a line of their own, except directives to tools."""
    source = io.StringIO(path.read_text(encoding="utf-8"))
    for token in tokenize.generate_tokens(source.readline):
        is_alone = token.type == tokenize.COMMENT and not token.line[: token.start[1]].strip()
        if is_alone and not re.match(r"#\s*(noqa|type:|fmt:|isort:|!)", token.string):
            yield Text(token.start[0], "comment", token.string.lstrip("# "))


def banned_in(path: Path) -> list[tuple[Text, str]]:
    """Return the docstrings and identifiers of a file that contain a banned word, each with that word."""
    return [
        (text, found[0])
        for text in (*docstrings(path), *names(path))
        for found in BANNED.finditer(text.text.lower())
    ]
