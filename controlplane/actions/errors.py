"""The exceptions that actions raise; REST, pages and CLI show the same codes."""

from controlplane.fields import FieldError


class Conflict(Exception):
    """The object's state does not allow the action (409). `detail`: the next step; `errors`: the fields concerned."""

    def __init__(self, code: str, detail: str, *errors: FieldError) -> None:
        super().__init__(detail)
        self.code, self.detail, self.errors = code, detail, list(errors)


class Invalid(Exception):
    """Invalid values (400), each with its field."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(error.detail for error in errors))
        self.errors = list(errors)


def invalid(pointer: str, code: str, detail: str) -> Invalid:
    """Return the Invalid exception for a single field."""
    return Invalid(FieldError(pointer, code, detail))
