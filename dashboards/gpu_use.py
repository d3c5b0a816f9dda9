"""Classify GPU utilisation. Tables, bars, device cells and figures take label and colour from here.

    not measured          –      no colour
    not held, at 0 %      free   no colour
    held, at 0 %          idle   amber, and the bar is an empty outline
    up to 50 %            low    amber
    above 50 %            busy   green

Colour is never the only sign: idle and low have a label beside the number, idle has its outline. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

LOW_AT_MOST = 0.5


class Use(StrEnum):
    """A class of utilisation; its value is a CSS class."""

    UNKNOWN = "unknown"
    FREE = "free"
    IDLE = "idle"
    LOW = "low"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class UseStyle:
    """How a class of utilisation is shown. `word`: its label. `colour`: a token of static/css/tokens.css, "" for
    none."""

    word: str
    colour: str


LOOKS: dict[Use, UseStyle] = {
    Use.UNKNOWN: UseStyle("not measured", ""),
    Use.FREE: UseStyle("free", ""),
    Use.IDLE: UseStyle("idle", "warning"),
    Use.LOW: UseStyle("low", "warning"),
    Use.BUSY: UseStyle("busy", "good"),
}
# Classes whose label is shown beside the number.
SAID_ALOUD = frozenset({Use.IDLE, Use.LOW})


def use_of(share: float | None, *, is_held: bool = True) -> Use:
    """Return the class of `share`, a GPU utilisation from 0 to 1 or None if not measured. `is_held`: a job holds
    the device or a part of the node."""
    if share is None:
        return Use.UNKNOWN
    if share == 0:
        return Use.IDLE if is_held else Use.FREE
    return Use.LOW if share <= LOW_AT_MOST else Use.BUSY
