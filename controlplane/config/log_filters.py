"""Keep credentials out of our own log, and shorten what it says about clients' mistakes."""

import logging
import re

# Parts of URLs that give access: tickets for jobs' hosts, and the setup link.
_SECRETS = (
    (re.compile(r"([?&]ticket=)[A-Za-z0-9_-]+"), r"\1[ticket]"),
    (re.compile(r"/setup/[^\s/?#\"']+"), "/setup/[secret]"),
)


class RedactingFormatter(logging.Formatter):
    """Replaces secrets in logged URLs (tickets, setup links). Django logs the path of every refused request, uvicorn
    that of every websocket."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        for pattern, shown in _SECRETS:
            line = pattern.sub(shown, line)
        return line


class ClientFaultFilter(logging.Filter):
    """Turns errors that clients cause into one-line warnings, and drops those below the root log level. Django logs
    every 403 with a traceback, and a wrong Host header as an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_refusal = record.name.startswith("django.security.")
        if is_refusal or getattr(record, "status_code", 500) < 500:
            record.exc_info = record.exc_text = None
            if record.levelno > logging.WARNING:
                record.levelno, record.levelname = logging.WARNING, "WARNING"
        return record.levelno >= logging.getLogger().level
