"""Questions to the scheduler's core that take seconds, answered in a process of their own."""
