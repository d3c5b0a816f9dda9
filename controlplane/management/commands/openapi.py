"""`manage.py openapi`: write the OpenAPI document, or check that the committed one is current."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import orjson
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from controlplane.api.openapi import openapi_document

PATH = Path(settings.BASE_DIR) / "docs" / "reference" / "openapi.json"


class Command(BaseCommand):
    """Writes docs/reference/openapi.json from the routes; with --check, writes nothing and fails if the file is
    stale."""

    help = "Write docs/reference/openapi.json from the routes; with --check, fail when it differs."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is stale")

    def handle(self, *args: Any, **options: Any) -> None:
        text = orjson.dumps(openapi_document(), option=orjson.OPT_INDENT_2) + b"\n"
        if not options["check"]:
            PATH.parent.mkdir(parents=True, exist_ok=True)
            PATH.write_bytes(text)
        elif not PATH.exists() or PATH.read_bytes() != text:
            raise CommandError("docs/reference/openapi.json is stale; run: manage.py openapi")
