"""Questions to the scheduler's core that take seconds, answered by a separate process."""
