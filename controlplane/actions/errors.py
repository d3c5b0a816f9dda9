"""The exceptions that actions raise; REST, pages and CLI show the same codes."""

from controlplane.fields import FieldError


class Conflict(Exception):
    """The object's state does not allow the action (HTTP 409). `code`: for programs; `detail`: what is wrong and the
    next step; `errors`: the fields concerned, if any."""

    def __init__(self, code: str, detail: str, *errors: FieldError) -> None:
        super().__init__(detail)
        self.code, self.detail, self.errors = code, detail, list(errors)


class Invalid(Exception):
    """The submitted values are invalid (HTTP 400). `errors`: one per refused field."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(error.detail for error in errors))
        self.errors = list(errors)


def invalid(pointer: str, code: str, detail: str) -> Invalid:
    """Return an `Invalid` with one error. `pointer`: JSON pointer of the field."""
    return Invalid(FieldError(pointer, code, detail))
