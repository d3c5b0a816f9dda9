"""`make up`: one process that starts the control plane, restarts what dies, and stops it. Imports no Django."""
