"""REST views of jobs and nodes."""
