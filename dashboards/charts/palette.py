"""Chart colours of both themes; the same values as in static/css/tokens.css (a test compares them)."""

from dataclasses import dataclass
from typing import Literal

Theme = Literal["light", "dark"]


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of a theme; `projects` is indexed by palette index."""

    surface: str
    line: str
    text: str
    second: str
    third: str
    accent: str
    good: str
    warning: str
    projects: tuple[str, ...]

    def project(self, index: int) -> str:
        """Return the colour of a project's palette index; indexes beyond the palette begin again at its start."""
        return self.projects[index % len(self.projects)]


LIGHT = Palette(
    surface="#ffffff",
    line="#eef0f3",
    text="#14181f",
    second="#5b6472",
    third="#68717f",
    accent="#2f5fd0",
    good="#1a7f4b",
    warning="#9a6200",
    projects=(
        "#2b6cb0", "#c2611f", "#2a8a78", "#8250c4", "#6b1f78", "#7d975c",
        "#2f3e9e", "#5c4310", "#0f4a2c", "#9a86bd", "#8a2c4a", "#5f6b7a",
    ),
)  # fmt: skip
DARK = Palette(
    surface="#171b21",
    line="#20252d",
    text="#e8ebf0",
    second="#9aa4b2",
    third="#8590a0",
    accent="#7ea6ff",
    good="#4cc38a",
    warning="#e5a93b",
    projects=(
        "#5b9bd8", "#e08e4f", "#4fb8a3", "#a884e6", "#f7bfd8", "#e6cf3f",
        "#cbc6fa", "#c2492c", "#c3dba0", "#86608f", "#aa474a", "#8d99a8",
    ),
)  # fmt: skip


def palette_for(theme: str) -> Palette:
    """Return the palette of a theme; the light one for any other name than "dark"."""
    return DARK if theme == "dark" else LIGHT
