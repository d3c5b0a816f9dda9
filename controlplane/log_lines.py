"""What goes into our own log: no credential, and no error that is only a probe asking early."""

import logging
import re

_TICKET = re.compile(
    r"/~[A-Za-z0-9_-]{20,}"
)  # of controlplane/gateway/tickets.py, in the addresses of services
PROBE = "/readyz"


class TicketlessFormatter(logging.Formatter):
    """Takes the tickets out of addresses, whoever logs them: uvicorn writes down the path of every websocket."""

    def format(self, record: logging.LogRecord) -> str:
        return _TICKET.sub("/~[ticket]", super().format(record))


class ProbeFilter(logging.Filter):
    """Drops Django's error for a 503 of /readyz: that is its answer while things start, and who asks is told why."""

    def filter(self, record: logging.LogRecord) -> bool:
        path = getattr(getattr(record, "request", None), "path", None)
        return not (path == PROBE and getattr(record, "status_code", None) == 503)
