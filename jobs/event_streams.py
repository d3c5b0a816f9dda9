"""Event streams that the jobs app registers: followed logs."""

from controlplane.live.streams import EventStream
from jobs import log_stream

STREAMS = (EventStream(log_stream.PATH, log_stream.application, log_stream.close),)
