"""The list of the user's own API tokens, without revoked ones."""

from collections.abc import Sequence
from typing import Any

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from controlplane.access import Actor
from controlplane.models import Token
from dashboards.lists import cells
from dashboards.lists.columns import time_column
from dashboards.lists.table import Column, ListView, Row, counted, in_order
from dashboards.templatetags.ui import moment


def _rows(actor: Actor, pks: Sequence[Any]) -> list[Row]:
    fields = ("name", "prefix", "is_read_only", "created_at", "last_used_at", "expires_at")
    return [
        {name: getattr(token, name) for name in fields} | {"key": token.pk}
        for token in in_order(Token.objects.all(), pks)
    ]


def _may(row: Row) -> str:
    return gettext("read") if row["is_read_only"] else gettext("read and write")


def _expires(row: Row) -> str:
    tone = "bad" if row["expires_at"] < timezone.now() else "quiet"
    return format_html('<span class="{}">{}</span>', tone, moment(row["expires_at"]))


def _revoke(row: Row) -> str:
    url, label = reverse("token-revoke", args=[row["key"]]), gettext("Revoke…")
    name = f"{gettext('Revoke')} {row['name']}"
    return format_html(
        '<a class="button small danger" data-ask href="{}" aria-label="{}">{}</a>', url, name, label
    )


TOKENS = ListView(
    name="tokens",
    order="-made",
    unique="-pk",
    rows=_rows,
    summary=counted(ngettext_lazy("{count} token", "{count} tokens")),
    empty="dashboards/empty/tokens.html",
    columns=(
        Column("name", _("Name"), cells.text("name"), "name", "strong break"),
        Column(
            "prefix",
            _("Begins with"),
            lambda row: format_html("<code>{}…</code>", row["prefix"]),
            "prefix",
            "aside",
        ),
        Column("may", _("May"), _may, "is_read_only", "quiet aside"),
        time_column("made", _("Made"), "created_at", "quiet nowrap aside"),
        time_column("used", _("Last used"), "last_used_at", never=_("never")),
        Column("expires", _("Expires"), _expires, "expires_at", "nowrap"),
        Column("revoke", "", _revoke, css="num"),
    ),
)
