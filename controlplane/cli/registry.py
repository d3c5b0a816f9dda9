"""The table of all `yard` commands and their modules. A module is imported only when its command runs.

A command `"list jobs"` with target `jobs:list_jobs` is `list_jobs(args, session)` in `commands/jobs.py`. It
returns the exit code, None for 0. `list_jobs_arguments(parser)` beside it declares its arguments.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command of `yard`. `path`: the words that call it; `target`: `MODULE:FUNCTION` below commands/; `summary`:
    its line in `yard help`; `is_watchable`: it accepts `--watch`; `takes_command`: it accepts a command line after
    `--`."""

    path: str
    target: str
    summary: str
    is_watchable: bool = False
    takes_command: bool = False


class Group(NamedTuple):
    """The commands under one heading of `yard help`."""

    title: str
    commands: tuple[Command, ...]


# fmt: off
GROUPS = (
    Group("Start work", (
        Command("submit", "submit:submit", "Submit a training or an interactive job", takes_command=True),
        Command("submit-mpi", "submit:submit_mpi", "Submit an MPI job: a launcher and its ranks",
                takes_command=True),
        Command("submit-elastic", "submit:submit_elastic",
                "Submit an elastic job: its number of workers may change", takes_command=True),
        Command("clone", "jobs:clone", "Submit a copy of a job"),
    )),
    Group("See work", (
        Command("list jobs", "jobs:list_jobs", "List jobs of the project, or of all with -A", is_watchable=True),
        Command("describe job", "jobs:describe_job", "Show a job with its pods and events", is_watchable=True),
        Command("explain", "jobs:explain", "Explain why a job waits and what would start it", is_watchable=True),
        Command("logs", "logs:logs", "Print a job's output, follow it with -f"),
        Command("wait", "wait:wait", "Wait until a job reaches a state"),
        Command("top jobs", "top:top_jobs", "GPUs, utilisation and progress of running jobs", is_watchable=True),
    )),
    Group("Steer work", (
        Command("bash", "shell:bash", "Open a shell in a running pod"),
        Command("exec", "execute:exec_", "Run a command in a running pod", takes_command=True),
        Command("port-forward", "forward:port_forward", "Reach a job's port on this machine"),
        Command("attach", "logs:attach", "Follow what a running job prints, from now on"),
        Command("stop", "jobs:stop", "Stop jobs, keep their records"),
        Command("suspend", "jobs:suspend", "Stop jobs until resumed; their GPUs are released"),
        Command("resume", "jobs:resume", "Queue suspended jobs again"),
        Command("delete", "jobs:delete", "Stop jobs and delete their records and logs"),
        Command("scale", "scale:scale", "Set the number of workers of an elastic job"),
        Command("scaleout", "scale:scaleout", "Add workers to an elastic job"),
        Command("scalein", "scale:scalein", "Take workers from an elastic job"),
    )),
    Group("Data", (
        Command("dataset init", "datasets:init", "Create a dataset for a directory"),
        Command("dataset sync", "datasets:sync", "Create a version from a directory; sends what changed"),
        Command("dataset list", "datasets:list_", "List datasets"),
        Command("dataset versions", "datasets:versions", "List a dataset's versions"),
        Command("dataset files", "datasets:files", "List a directory of a version"),
        Command("dataset lineage", "lineage:of_version", "Show what a version was made from and what read it"),
        Command("lineage", "lineage:lineage", "Show what a job, an artifact or a snapshot was made from"),
        Command("dataset diff", "datasets:diff", "Show what differs between two versions"),
        Command("dataset clone", "datasets:clone", "Write a version's files into a directory"),
        Command("dataset verify", "verification:verify", "Read and hash a version's content in the lake"),
        Command("dataset tag", "datasets:tag", "Tag a version, or move a tag to it"),
        Command("dataset register", "registrations:register", "Create a version from a directory of the server"),
        Command("dataset subset", "subsets:subset", "Save a named subset of a version"),
        Command("dataset subsets", "subsets:subsets", "List a version's subsets"),
        Command("dataset cache", "caches:cache", "Cache a version near the GPUs"),
        Command("dataset uncache", "caches:uncache", "Remove a cache"),
        Command("dataset pin", "caches:pin", "Pin a cache: it is not removed by age or to free space"),
        Command("dataset unpin", "caches:unpin", "Unpin a cache: it may be removed again"),
        Command("dataset caches", "caches:caches", "List caches"),
        Command("cache-location list", "locations:list_", "List cache locations with their room"),
        Command("cache-location create", "locations:create", "Create a cache location for some nodes"),
        Command("cache-location edit", "locations:edit",
                "Change the room, age limit or nodes of a cache location"),
        Command("cache-location delete", "locations:delete", "Delete a cache location"),
        Command("dataset edit", "datasets:edit", "Change a dataset's description, or who may read it"),
        Command("dataset delete", "datasets:delete", "Delete a dataset with all its versions"),
        Command("volume create", "volumes:create", "Create a volume for jobs to write to"),
        Command("volume list", "volumes:list_", "List volumes"),
        Command("volume describe", "volumes:describe", "Show a volume, and the jobs that mount it"),
        Command("volume files", "volumes:files", "List a directory of a volume"),
        Command("volume get", "volumes:get", "Download a file of a volume"),
        Command("volume resize", "volumes:resize", "Change the size of a volume"),
        Command("volume access-mode", "volumes:set_access_mode", "Let one job or many mount a volume at once"),
        Command("volume tier", "volumes:tier", "Change the service tier of a volume"),
        Command("artifact list", "artifacts:list_", "List what jobs kept of their output"),
        Command("artifact files", "artifacts:files", "List the files of an artifact"),
        Command("artifact download", "artifacts:download", "Write the files of an artifact"),
        Command("artifact delete", "artifacts:delete", "Delete an artifact"),
        Command("volume schedule", "volumes:schedule", "Take snapshots of a volume on a schedule"),
        Command("volume keep", "volumes:keep", "Limit how many snapshots of events are kept"),
        Command("volume clone", "volumes:clone", "Create a copy of a volume"),
        Command("volume delete", "volumes:delete", "Delete a volume with its content"),
        Command("snapshot create", "snapshots:create", "Take a snapshot of a volume"),
        Command("snapshot list", "snapshots:list_", "List snapshots"),
        Command("snapshot restore", "snapshots:restore", "Create a volume from a snapshot"),
        Command("snapshot delete", "snapshots:delete", "Delete a snapshot"),
    )),
    Group("Projects", (
        Command("list projects", "projects:list_projects", "List projects with quota and allocation",
                is_watchable=True),
        Command("describe project", "projects:describe_project", "Show a project", is_watchable=True),
        Command("project create", "projects:project_create", "Create a project"),
        Command("project edit", "projects:project_edit", "Change a project"),
        Command("project what-if", "what_if:project_what_if", "Simulate another quota, weight or limit"),
        Command("project delete", "projects:project_delete", "Delete a project"),
        Command("project members", "projects:project_members", "List, add and remove members"),
        Command("list departments", "departments:list_departments", "List departments with their projects"),
        Command("department create", "departments:department_create", "Create a department (admins)"),
        Command("department edit", "departments:department_edit", "Change a department (admins)"),
        Command("department delete", "departments:department_delete", "Delete a department (admins)"),
    )),
    Group("Cluster", (
        Command("list nodes", "nodes:list_nodes", "List nodes with their GPUs", is_watchable=True),
        Command("describe node", "nodes:describe_node", "Show a node with its devices and pods",
                is_watchable=True),
        Command("top nodes", "top:top_nodes", "GPU and memory utilisation per node", is_watchable=True),
        Command("node cordon", "nodes:node_cordon", "Cordon nodes: they get no new pods"),
        Command("node uncordon", "nodes:node_uncordon",
                "Uncordon nodes; withdraws interruption notices given here"),
        Command("node drain", "nodes:node_drain", "Cordon nodes and move their jobs away"),
        Command("node interruption-notice", "nodes:node_interruption_notice",
                "Announce that a node's provider will withdraw it soon (admins)"),
        Command("list node-pools", "nodes:list_pools", "List node pools and which are spot"),
        Command("node-pool create", "nodes:pool_create", "Create an empty node pool (admins)"),
        Command("node-pool edit", "nodes:pool_edit", "Mark a node pool as spot, or not (admins)"),
        Command("node-pool delete", "nodes:pool_delete", "Delete an empty node pool (admins)"),
        Command("node move", "nodes:node_move", "Move nodes to another node pool (admins)"),
        Command("node confirm-dead", "nodes:node_confirm_dead",
                "Release the GPUs of a dead node, requeue its jobs (admins)"),
        Command("list clusters", "clusters:list_clusters", "List clusters with their state", is_watchable=True),
        Command("describe cluster", "clusters:describe_cluster", "Show a cluster and its check results"),
        Command("cluster add", "clusters:cluster_add", "Attach a cluster of any kind (admins)"),
        Command("cluster edit", "clusters:cluster_edit", "Change settings or credentials (admins)"),
        Command("cluster check", "clusters:cluster_check", "Check a cluster again (admins)"),
        Command("cluster view", "clusters:cluster_view", "Save the scheduler's view of a cluster (admins)"),
        Command("cluster remove", "clusters:cluster_remove", "Detach a cluster (admins)"),
    )),
    Group("Account and settings", (
        Command("login", "account:login", "Log in to a server and remember it"),
        Command("logout", "account:logout", "Forget the token of the server in use"),
        Command("whoami", "account:whoami", "Show who you are, with your roles"),
        Command("config project", "settings:config_project", "Set the project used without -p"),
        Command("config contexts", "settings:config_contexts", "List the servers you logged in to"),
        Command("config use", "settings:config_use", "Switch to another server"),
        Command("list tokens", "tokens:list_tokens", "List your API tokens"),
        Command("token create", "tokens:token_create", "Create an API token, shown once"),
        Command("token revoke", "tokens:token_revoke", "Revoke an API token"),
        Command("list users", "users:list_users", "List users (admins)"),
        Command("user create", "users:user_create", "Create a user (admins)"),
        Command("audit", "audit:audit", "Show who changed what (admins)"),
    )),
    Group("Yard itself", (
        Command("doctor", "doctor:doctor", "Check settings, server and login"),
        Command("demo four-teams", "demo:demo_four_teams", "Play four teams sharing sixteen GPUs, with pauses"),
        Command("completion", "completion:completion", "Print the completion script for a shell"),
        Command("version", "about:version", "Print the version"),
        Command("help", "about:help_", "Help on a command; `yard help aliases` lists other spellings"),
    )),
)
# fmt: on

COMMANDS = {command.path: command for group in GROUPS for command in group.commands}


def resolve(words: list[str]) -> tuple[Command, list[str]] | None:
    """Return the command that `words` begin with, and the words after it; None if there is none. A command of two
    words goes before one of one."""
    for length in (2, 1):
        command = COMMANDS.get(" ".join(words[:length]))
        if command is not None and len(words) >= length:
            return command, words[length:]
    return None
