"""Escape untrusted text for a terminal.

A job may print any control sequence, such as ones that change the window title, write to the clipboard, move
the cursor or hide text. On a terminal, colours (SGR) are kept and all others are shown escaped; into a pipe,
text is unchanged.
"""

from __future__ import annotations

import re

from controlplane.unsafe_text import UNSAFE, UNSAFE_CLASS, written_out

_SGR = r"\x1b\[[0-9;:]*m"
_UNSAFE_OR_COLOUR = re.compile(f"{_SGR}|[{UNSAFE_CLASS}]")
_RESET = "\x1b[0m"


def is_coloured(environ: dict[str, str], is_terminal: bool) -> bool:
    """Return whether to use colour: on a terminal, unless NO_COLOR is set or TERM is `dumb`."""
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def log_line(text: str, *, colour: bool) -> str:
    """Return a line of a job's output so that it is safe on a terminal. Text before a carriage return is dropped, as
    a terminal overwrites it; control characters are escaped. With `colour`, colour codes are kept and reset at the
    end of the line."""
    shown = text.rstrip("\r").rpartition("\r")[2]
    if not UNSAFE.search(shown):
        return shown
    safe = _UNSAFE_OR_COLOUR.sub(_keep_colour if colour else _drop_colour, shown)
    return safe + _RESET if "\x1b[" in safe else safe


def _keep_colour(match: re.Match[str]) -> str:
    found = match.group()
    # Longer matches are colours; all other characters match alone.
    return found if len(found) > 1 else written_out(match)


def _drop_colour(match: re.Match[str]) -> str:
    return "" if len(match.group()) > 1 else written_out(match)
