"""What a GPU's utilisation means, in one place: tables, bars, device cells and figures take word and colour from here.

    nothing measures it   –      no colour
    not held, at 0 %      free   no colour
    held, at 0 %          idle   amber, and the bar is an empty outline
    up to 50 %            low    amber
    above 50 %            busy   green

Colour never stands alone: idle and low have their word beside the number, idle has its outline. Pure.
"""

from dataclasses import dataclass
from enum import StrEnum

LOW_AT_MOST = 0.5


class Use(StrEnum):
    """A step of the scale; the value is its CSS class."""

    UNKNOWN = "unknown"
    FREE = "free"
    IDLE = "idle"
    LOW = "low"
    BUSY = "busy"


@dataclass(frozen=True, slots=True)
class UseLook:
    """How a step is shown: word, and colour as a token name of static/css/tokens.css, "" for none."""

    word: str
    colour: str


LOOKS: dict[Use, UseLook] = {
    Use.UNKNOWN: UseLook("not measured", ""),
    Use.FREE: UseLook("free", ""),
    Use.IDLE: UseLook("idle", "warning"),
    Use.LOW: UseLook("low", "warning"),
    Use.BUSY: UseLook("busy", "good"),
}
# Their word stands beside the number.
SAID_ALOUD = frozenset({Use.IDLE, Use.LOW})


def use_of(share: float | None, *, is_held: bool = True) -> Use:
    """Return the step of a utilisation from 0 to 1. `is_held`: a job holds the device, or some of the node's."""
    if share is None:
        return Use.UNKNOWN
    if share == 0:
        return Use.IDLE if is_held else Use.FREE
    return Use.LOW if share <= LOW_AT_MOST else Use.BUSY
