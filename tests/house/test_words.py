"""Docstrings and names in plain technical English: a list of words that they may not use (docs/glossary.md)."""

from pathlib import Path

import pytest

from tests.house.prose import BANNED, banned_in, in_words
from tests.house.sources import PRODUCT, python_files


def test_docstrings_and_names_use_no_banned_word() -> None:
    found = [
        f"{path}:{text.line}: {word} in {text.text!r}"
        for path in python_files(PRODUCT)
        for text, word in banned_in(path)
    ]
    assert not found, "write these in plain technical English:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""Tell every engine."""', ["tell"]),
        ('def f():\n    """Whoever asks is told."""', ["whoever", "told"]),
        ("def tell_all(): ...", ["tell"]),
        ("class Told: ...", ["told"]),
        ("def f(untold): self.heard_at = nobody = 1", ["untold", "heard", "nobody"]),
        ('"""Report a shell; known, outlook, retold, intelligible."""\nx = told()', []),
    ],
)
def test_the_rule_bites(source: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert sorted(word for _, word in banned_in(path)) == sorted(found)


def test_names_are_split_into_words() -> None:
    assert [in_words(name) for name in ("HTTPServer", "_told", "onTold2")] == [
        "http server",
        "told",
        "on told",
    ]
    assert not BANNED.search("known")
