"""What goes into our own log: no credential."""

import logging
import re

# What stands in an address and opens something: tickets of controlplane/gateway/tickets.py, the set-up link.
_SECRETS = (
    (re.compile(r"/~[A-Za-z0-9_-]{20,}"), "/~[ticket]"),
    (re.compile(r"/setup/[^\s/?#\"']+"), "/setup/[secret]"),
)


class RedactingFormatter(logging.Formatter):
    """Takes secrets out of addresses, whatever logs them: Django writes down the path of every refused request,
    uvicorn that of every websocket."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        for pattern, shown in _SECRETS:
            line = pattern.sub(shown, line)
        return line
