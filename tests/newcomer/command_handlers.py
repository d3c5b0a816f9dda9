"""Registers a long command on a queue of its own."""

from controlplane.commands.registry import CommandHandler, register


@register
class FillVolume(CommandHandler):
    kind, queue = "newcomer.fill", "newcomer"
