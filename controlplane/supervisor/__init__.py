"""`make up`: one process that starts the control plane, restarts components that die, and stops it. Does not import
Django."""
