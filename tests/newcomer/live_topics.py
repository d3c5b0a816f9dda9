"""Registers a kind of live topic."""

from controlplane.live.registry import Reading, TopicKind

TOPICS = (
    TopicKind(
        "newcomer",
        parse=lambda subject: subject or None,
        project_of=lambda subject: 7,
        read=lambda subject, project_id: Reading({"volume": {subject: {}}}),
        is_touched=lambda touch: True,
    ),
)
