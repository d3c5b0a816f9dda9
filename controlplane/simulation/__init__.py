"""Questions to the scheduler that take seconds, answered in a separate process."""
