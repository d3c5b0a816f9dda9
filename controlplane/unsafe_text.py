"""Characters that hide or reorder text, written out. Terminals and pages show untrusted names, such as those of files,
with them."""

import re

# C0 without tab, DEL, C1, and characters that reorder or hide text.
UNSAFE_CLASS = "\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
UNSAFE = re.compile(f"[{UNSAFE_CLASS}]")


def visible(text: str) -> str:
    """Return the text with every control and bidirectional character escaped, colour codes too; for table cells and
    messages."""
    return UNSAFE.sub(written_out, text) if UNSAFE.search(text) else text


def written_out(match: re.Match[str]) -> str:
    """Return the matched character as text: caret notation (`^[`) for C0 controls and DEL, else the code point
    (`<9b>`)."""
    code = ord(match.group())
    if code == 0x7F:
        return "^?"
    return f"^{chr(code + 64)}" if code < 0x20 else f"<{code:x}>"
