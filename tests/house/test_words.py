"""Docstrings and names in plain technical English: a list of words that they may not use (docs/glossary.md)."""

from collections import Counter
from pathlib import Path

import pytest

from tests.house.prose import BANNED, banned_in, in_words
from tests.house.sources import PRODUCT, module_of, python_files

# Module prefix -> banned words that it still has, exactly. Entries may only shrink; every other module has none.
LEFT = {
    "controlplane.scheduling": 2,
}


def prefix_of(module: str) -> str:
    return next((prefix for prefix in LEFT if f"{module}.".startswith(f"{prefix}.")), module)


def test_docstrings_and_names_use_no_banned_word() -> None:
    counts, places = Counter[str](), dict[str, list[str]]()
    for path in python_files(PRODUCT):
        prefix = prefix_of(module_of(path))
        for text, word in banned_in(path):
            counts[prefix] += 1
            places.setdefault(prefix, []).append(f"{path.name}:{text.line} {text.kind}: {word}")
    grown = [line for prefix in counts if counts[prefix] > LEFT.get(prefix, 0) for line in places[prefix]]
    assert not grown, "write these in plain technical English:\n" + "\n".join(grown)
    assert {prefix: counts[prefix] for prefix in LEFT} == LEFT, "lower the entries of LEFT to what is left"


def test_an_entry_of_the_list_names_modules_that_exist() -> None:
    modules = [f"{module_of(path)}." for path in python_files(PRODUCT)]
    assert all(any(module.startswith(f"{prefix}.") for module in modules) for prefix in LEFT)


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
