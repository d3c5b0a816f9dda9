"""Messages between this process and its children: a length and a marshalled value.

Children load this module and little else, since loading `typing` or `dataclasses` takes longer than their start.
"""

from __future__ import annotations

import marshal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

_LENGTH = struct.Struct("<I")


def write_message(pipe: IO[bytes], frame: tuple[Any, ...] | bytes | str) -> None:
    """Write a message to a pipe and flush it."""
    raw = marshal.dumps(frame)
    pipe.write(_LENGTH.pack(len(raw)) + raw)
    pipe.flush()


def read_message(read: Callable[[int], bytes]) -> Any:
    """Return the next message from a pipe by its `read`; None at the end of the input, also inside a message."""
    head = read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    length = _LENGTH.unpack(head)[0]
    raw = read(length)
    # The other side was killed while it wrote.
    return marshal.loads(raw) if len(raw) == length else None
