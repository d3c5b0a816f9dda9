"""Escape untrusted text for a terminal.

A job may print any control sequence, such as ones that change the window title, write to the clipboard, move
the cursor or hide text. On a terminal, colours (SGR) are kept and all others are shown escaped; into a pipe,
text is unchanged.
"""

from __future__ import annotations

import re

_SGR = r"\x1b\[[0-9;:]*m"
# C0 without tab, DEL, C1, and characters that reorder or hide text.
_UNSAFE_CLASS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
_UNSAFE = re.compile(f"[{_UNSAFE_CLASS}]")
_UNSAFE_OR_COLOUR = re.compile(f"{_SGR}|[{_UNSAFE_CLASS}]")
_RESET = "\x1b[0m"


def is_coloured(environ: dict[str, str], is_terminal: bool) -> bool:
    """Return whether to use colour: on a terminal, unless NO_COLOR is set or TERM is `dumb`."""
    return is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def visible(text: str) -> str:
    """Return the text with every control and bidirectional character escaped, colour codes too; for table cells and
    messages."""
    return _UNSAFE.sub(_written_out, text) if _UNSAFE.search(text) else text


def log_line(text: str, *, colour: bool) -> str:
    """Return a line of a job's output so that it is safe on a terminal. Text before a carriage return is dropped, as
    a terminal overwrites it; control characters are escaped. With `colour`, colour codes are kept and reset at the
    end of the line."""
    shown = text.rstrip("\r").rpartition("\r")[2]
    if not _UNSAFE.search(shown):
        return shown
    safe = _UNSAFE_OR_COLOUR.sub(_keep_colour if colour else _drop_colour, shown)
    return safe + _RESET if "\x1b[" in safe else safe


def _keep_colour(match: re.Match[str]) -> str:
    found = match.group()
    # Longer matches are colours; all other characters match alone.
    return found if len(found) > 1 else _written_out(match)


def _drop_colour(match: re.Match[str]) -> str:
    return "" if len(match.group()) > 1 else _written_out(match)


def _written_out(match: re.Match[str]) -> str:
    """Return the matched character as text: caret notation (`^[`) for C0 controls and DEL, else the code point
    (`<9b>`)."""
    code = ord(match.group())
    if code == 0x7F:
        return "^?"
    return f"^{chr(code + 64)}" if code < 0x20 else f"<{code:x}>"
