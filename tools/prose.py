"""`python -m tools.prose [SEED]`: draw 40 docstrings to judge, and count own-line comments and banned words."""

import random
import sys

from tests.house.prose import banned_in, docstrings, own_line_comments
from tests.house.sources import PRODUCT, ROOT, python_files

DRAWN = 40


def main(arguments: list[str]) -> int:
    """Print the drawn docstrings and the counts. The seed is the first argument, 1 by default."""
    paths = python_files(PRODUCT)
    texts = [(path.relative_to(ROOT), text) for path in paths for text in docstrings(path)]
    for path, text in random.Random(int(arguments[0]) if arguments else 1).sample(texts, DRAWN):
        print(f"{path}:{text.line}\n    {text.text.replace(chr(10), chr(10) + '    ')}")
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in paths)
    comments = sum(1 for path in paths for _ in own_line_comments(path))
    banned = sum(len(banned_in(path)) for path in paths)
    print(f"{len(texts)} docstrings with {banned} banned words or names; {lines} lines,")
    print(f"{comments} comment lines of their own ({100 * comments / lines:.2f} %)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
