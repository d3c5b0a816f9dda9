"""Environment variables of pods that the control plane sets on every engine."""

# The service token, set in pods with ports: see controlplane/config/service_tokens.py.
SERVICE_TOKEN = "TRAINYARD_SERVICE_TOKEN"
# The mount paths of the volumes that the pod may write to, separated by colons.
VOLUMES = "TRAINYARD_VOLUMES"
