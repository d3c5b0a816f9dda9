"""How an action refuses: named codes that every face shows the same way."""

from jobs.kinds.fields import FieldError


class Conflict(Exception):
    """The object is not in a state that allows the verb (409). `detail` says what to do, `errors` in which fields."""

    def __init__(self, code: str, detail: str, *errors: FieldError) -> None:
        super().__init__(detail)
        self.code, self.detail, self.errors = code, detail, list(errors)


class Invalid(Exception):
    """Values that cannot be accepted (400), with the field of each."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(error.detail for error in errors))
        self.errors = list(errors)


def invalid(pointer: str, code: str, detail: str) -> Invalid:
    """Return the refusal of a single field."""
    return Invalid(FieldError(pointer, code, detail))
