"""Usage and progress of jobs, collected once a second."""
