"""What goes into our own log: no credential."""

import logging
import re

_TICKET = re.compile(
    r"/~[A-Za-z0-9_-]{20,}"
)  # of controlplane/gateway/tickets.py, in the addresses of services


class TicketlessFormatter(logging.Formatter):
    """Takes the tickets out of addresses, whoever logs them: uvicorn writes down the path of every websocket."""

    def format(self, record: logging.LogRecord) -> str:
        return _TICKET.sub("/~[ticket]", super().format(record))
