"""Construct many frozen objects in less time."""

from dataclasses import field, fields, make_dataclass
from typing import Any, TypeVar, cast

T = TypeVar("T")


def quick_constructor(of: type[T]) -> type[T]:
    """Return a constructor of the frozen dataclass `of`, which has slots and neither default factories nor a
    `__post_init__`. Pass the values by position.

    The dataclass's own constructor calls object.__setattr__ for each field, and matching 37 keywords takes as long
    again: together eight times as long (`python -m bench.loop`, first cycle). This one assigns the slots of an object
    that is not frozen yet.
    """

    def freeze(made: Any) -> None:
        made.__class__ = of

    columns = [(one.name, one.type, field(default=one.default)) for one in fields(cast("Any", of))]
    namespace = {"__post_init__": freeze}
    return cast(
        "type[T]",
        make_dataclass(of.__name__, columns, slots=True, eq=False, repr=False, namespace=namespace),
    )
