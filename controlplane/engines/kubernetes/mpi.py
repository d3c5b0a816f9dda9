"""How a launcher reaches its ranks without an operator: a host file, a key of the attempt, and sshd in every host.
No I/O.

The hosts are the attempt's pods, by their names in its headless service. Each runs sshd as the pod's own user on a
port above 1,024, accepts only the attempt's key, and gives each rank the environment of the pod that it runs in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.engines.base import PodSpec
from controlplane.engines.kubernetes import names
from controlplane.engines.kubernetes.mounts import Volumes
from controlplane.engines.mpi_hostfile import SSH_OPTIONS, host_files, launch_variables

LAUNCH_DIR, KEY_DIR = "/etc/trainyard/launch", "/etc/trainyard/ssh"
PRIVATE_KEY, PUBLIC_KEY = "ssh-privatekey", "ssh-publickey"
SSH_PORT = 2222
WAITING = "wait-for-hosts"
# The time in which all hosts must answer. A host that cannot start is reported earlier, as a failed pod.
WAIT_SECONDS = 900
ENVIRONMENT_FILE, SESSIONS = "/tmp/trainyard-environment", "/tmp/trainyard-sessions"
CONFIG_FILE, HOST_FILE, WAIT_FILE = "sshd_config", "host.sh", "wait.sh"
SSH = f"-p {SSH_PORT} -i {KEY_DIR}/{PRIVATE_KEY} -o IdentitiesOnly=yes {SSH_OPTIONS}"

SSHD_CONFIG = f"""\
Port {SSH_PORT}
HostKey {KEY_DIR}/{PRIVATE_KEY}
AuthorizedKeysFile {KEY_DIR}/{PUBLIC_KEY}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
ForceCommand . {ENVIRONMENT_FILE} && touch {SESSIONS}/$$ && exec /bin/sh -c "$SSH_ORIGINAL_COMMAND"
"""
# A stopped host starts no more ranks, and for its grace period lets its launcher end the running ones. It always
# exits with an error: that sshd returns 0 on SIGTERM is no success.
HOST_SCRIPT = f"""\
sshd=$(PATH=$PATH:/usr/sbin command -v sshd)
[ "$sshd" ] || {{ echo "This image has no sshd, by which mpirun reaches this host."; exit 127; }}
umask 077
[ "$(id -u)" != 0 ] || mkdir -p /run/sshd
export -p > {ENVIRONMENT_FILE}
mkdir -p {SESSIONS}
"$sshd" -D -e -f {LAUNCH_DIR}/{CONFIG_FILE} &
trap 'stopped=1; kill $!' TERM
wait $!
code=$?
runs_a_rank() {{
  for session in {SESSIONS}/*; do [ ! -e "/proc/${{session##*/}}" ] || return 0; done
  return 1
}}
while [ "$stopped" ] && runs_a_rank; do sleep 0.1; done
[ $code != 0 ] || code=1
exit $code
"""
# Every host must answer, and must resolve the launcher's name, because its rank connects back to the launcher.
WAIT_SCRIPT = f"""\
command -v ssh > /dev/null || {{ echo "This image has no ssh, by which mpirun reaches its hosts."; exit 127; }}
end=$(( $(date +%s) + {WAIT_SECONDS} ))
until_it_works() {{
  until words=$("$@" 2>&1); do
    [ "$(date +%s)" -lt $end ] || {{ echo "$host does not answer: $words"; exit 1; }}
    sleep 0.5
  done
}}
launcher=$1
shift
for host in "$@"; do
  until_it_works ssh -o ConnectionAttempts=1 -o ConnectTimeout=2 {SSH} "$host" getent hosts "$launcher"
done
host=$launcher
until_it_works getent hosts "$launcher"
"""


def needs_launch(spec: PodSpec) -> bool:
    """Return whether the pod is a launcher or one of the hosts on which a launcher starts ranks."""
    return bool(spec.launches) or spec.is_host


def hosts(spec: PodSpec) -> list[str]:
    """Return the host names of the attempt's pods in its headless service, by rank."""
    service = names.service_name(spec.job_id, spec.attempt)
    return [f"{names.host_name(rank)}.{service}" for rank in range(spec.world_size)]


def launch_data(spec: PodSpec) -> Mapping[str, str]:
    """Return the launch files by name, for the attempt's anchor; {} without a launcher. The same for every pod of the
    attempt."""
    if not needs_launch(spec):
        return {}
    scripts = {CONFIG_FILE: SSHD_CONFIG, HOST_FILE: HOST_SCRIPT, WAIT_FILE: WAIT_SCRIPT}
    return {**host_files(hosts(spec)), **scripts}


def environment(spec: PodSpec) -> Mapping[str, str]:
    """Return the default environment variables of a launcher, which its job may override; {} for other pods."""
    if not spec.launches:
        return {}
    variables = launch_variables(LAUNCH_DIR, len(spec.launches))
    # Otherwise Hydra would give every rank the launcher's environment, including the launcher's identity.
    return {"HYDRA_ENV": "none"} | {
        name: value.replace(SSH_OPTIONS, SSH) for name, value in variables.items()
    }


def volumes(spec: PodSpec) -> Volumes:
    """Return the volumes with the launch files and the attempt's key, by name; {} for a pod without a launcher."""
    if not needs_launch(spec):
        return {}
    files = [{"key": file, "path": file} for file in sorted(launch_data(spec))]
    anchor = {"name": names.anchor_name(spec.job_id, spec.attempt), "items": files}
    # ssh refuses a private key that others may read. With the pod's fsGroup the group may read it, which ssh
    # accepts for a file of root's.
    secret = {"secretName": names.key_name(spec.job_id, spec.attempt), "defaultMode": 0o400}
    return {
        "launch": ({"mountPath": LAUNCH_DIR}, {"configMap": anchor}),
        "ssh": ({"mountPath": KEY_DIR}, {"secret": secret}),
    }


def dns_config(spec: PodSpec, namespace: str) -> dict[str, Any]:
    """Return DNS settings in which the launcher's host name resolves without a domain, because Hydra passes that name
    to its hosts; {} for a pod without a launcher."""
    if not needs_launch(spec):
        return {}
    return {"searches": [f"{names.service_name(spec.job_id, spec.attempt)}.{namespace}.svc.cluster.local"]}


def wait_command(spec: PodSpec) -> list[str]:
    """Return the command that waits until all hosts of a launcher answer; [] for other pods and without other hosts."""
    # mpirun gives up at the first host that refuses a connection, and pods of a gang start seconds apart.
    is_needed = len(spec.launches) > 1
    return ["/bin/sh", f"{LAUNCH_DIR}/{WAIT_FILE}", *hosts(spec)] if is_needed else []
