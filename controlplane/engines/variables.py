"""Environment variables of pods that the control plane sets on every engine."""

# A variable in pods with ports: see controlplane/config/service_tokens.py.
SERVICE_TOKEN = "TRAINYARD_SERVICE_TOKEN"
# Mount paths of the volumes that the pod may write to, with colons between them.
VOLUMES = "TRAINYARD_VOLUMES"
