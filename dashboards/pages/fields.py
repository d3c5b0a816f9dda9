"""Form fields for Trainyard's units: GPUs as decimals, durations as text such as "2h"."""

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, TypeVar

from django import forms
from django.utils.translation import gettext_lazy as _

from controlplane.actions.errors import Conflict, Invalid
from controlplane.fields import DNS_LABEL
from controlplane.notation import parse_duration, write_duration

Saved = TypeVar("Saved")


class DurationField(forms.CharField):
    """A duration: seconds as value, "2h" or "30m" in the form."""

    def clean(self, value: Any) -> int | None:
        text = super().clean(value)
        if not text:
            return None
        try:
            seconds = parse_duration(text)
        except ValueError as error:
            raise forms.ValidationError(_("Write a duration such as 30m, 2h or 1d.")) from error
        if not 1 <= seconds <= 2_000_000_000:
            raise forms.ValidationError(_("A duration is at least one second."))
        return seconds

    def prepare_value(self, value: Any) -> Any:
        return write_duration(value) if isinstance(value, int) else value


class GpuField(forms.DecimalField):
    """A number of GPUs: milli-GPUs as value, GPUs with up to three decimals in the form."""

    def __init__(self, **kwargs: Any) -> None:
        number = _("Write a number of GPUs from 0 to 1,000,000, with at most three decimals.")
        codes = ("invalid", "min_value", "max_value", "max_decimal_places")
        kwargs["error_messages"] = dict.fromkeys(codes, number)
        super().__init__(min_value=0, max_value=1_000_000, decimal_places=3, **kwargs)
        self.widget.attrs["step"] = "any"

    def clean(self, value: Any) -> Any:
        gpus: Decimal | None = super().clean(value)
        return None if gpus is None else int(gpus * 1000)

    def prepare_value(self, value: Any) -> Any:
        return f"{value / 1000:g}" if isinstance(value, int) else value


class NameField(forms.CharField):
    """A form field for a DNS label."""

    def __init__(self, *, longest: int, **kwargs: Any) -> None:
        super().__init__(max_length=longest, strip=True, **kwargs)

    def clean(self, value: Any) -> str:
        name = str(super().clean(value))
        if not DNS_LABEL.fullmatch(name):
            raise forms.ValidationError(
                _("Use lower-case letters, digits and hyphens; begin and end with a letter or digit.")
            )
        return name


def offer(form: forms.Form, name: str, values: Iterable[object]) -> None:
    """Set the choices of the choice field `name` to these values, which are also their labels."""
    field = form.fields[name]
    assert isinstance(field, forms.ChoiceField)
    field.choices = [(str(value), str(value)) for value in values]


def focus_errors(form: forms.BaseForm) -> None:
    """Let the browser focus the form's first refused field when the page is shown: screen readers then read its error,
    which describes it."""
    for name in form.errors:
        if name in form.fields:
            # Of several fields with autofocus, the first on the page is focused.
            form.fields[name].widget.attrs["autofocus"] = True


def add_errors(form: forms.Form, refused: Invalid) -> None:
    """Add refused fields to the form's fields of the same names, and the others to the form itself."""
    for error in refused.errors:
        name = error.pointer.strip("/").partition("/")[0]
        form.add_error(name if name in form.fields else None, error.detail)


def saved(form: forms.Form, save: Callable[[], Saved]) -> Saved | None:
    """Return what `save` returns. If it raises Invalid or Conflict, add the errors to the form, that of a Conflict to
    the field `name`, and return None."""
    try:
        return save()
    except Conflict as conflict:
        form.add_error("name", conflict.detail)
    except Invalid as refused:
        add_errors(form, refused)
    return None


def errors_by_field(refused: Invalid) -> dict[str, str]:
    """Return the error text of each refused field; several are joined. An error about a part of a field begins
    with its place in the field."""
    found: dict[str, str] = {}
    for error in refused.errors:
        field, _slash, inside = error.pointer.removeprefix("/").partition("/")
        text = f"{inside}: {error.detail}" if inside else error.detail
        found[field] = f"{found[field]} {text}" if field in found else text
    return found
