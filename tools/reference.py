"""`make reference`: writes the pages of docs/reference that come from the code. tests/house compares them."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from controlplane.environment import SETTINGS  # noqa: E402  needs the path above

SETTINGS_PAGE = ROOT / "docs" / "reference" / "settings.md"


def settings_page() -> str:
    """The text of docs/reference/settings.md."""
    rows = [
        f"| `{one.name}` | {f'`{one.default}`' if one.default else 'empty'} | {one.about} |"
        for one in SETTINGS
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "All of them come from the environment, all are optional, and an impossible one is refused at start with a",
            "hint. This page is written by `make reference` from `controlplane/environment.py`.",
            "",
            "| variable | default | what it does |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def main() -> None:
    """Write the pages."""
    SETTINGS_PAGE.parent.mkdir(parents=True, exist_ok=True)
    SETTINGS_PAGE.write_text(settings_page())
    print(SETTINGS_PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
