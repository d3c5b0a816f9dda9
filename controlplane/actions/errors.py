"""Refusals of actions: named codes that REST, pages and CLI present alike."""

from controlplane.fields import FieldError


class Conflict(Exception):
    """The object's state does not allow the verb (409). `detail`: what to do; `errors`: the fields concerned."""

    def __init__(self, code: str, detail: str, *errors: FieldError) -> None:
        super().__init__(detail)
        self.code, self.detail, self.errors = code, detail, list(errors)


class Invalid(Exception):
    """Values that are refused (400), with the field of each."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(error.detail for error in errors))
        self.errors = list(errors)


def invalid(pointer: str, code: str, detail: str) -> Invalid:
    """Return the refusal of a single field."""
    return Invalid(FieldError(pointer, code, detail))
