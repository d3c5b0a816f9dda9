"""STATE: all models of the control plane, one module per noun; all can be imported from here."""

from controlplane.models.accounts import AuditEntry, Membership, Role, ServiceTicket, SetupLink, Token, User
from controlplane.models.clusters import Cluster, Device, Node, NodePool
from controlplane.models.commands import Command
from controlplane.models.cycles import Cycle
from controlplane.models.events import Counter, Event
from controlplane.models.idempotency import IdempotencyRecord
from controlplane.models.leases import Lease
from controlplane.models.projects import Department, Project
from controlplane.models.telemetry import Sample

__all__ = [
    "AuditEntry",
    "Cluster",
    "Command",
    "Counter",
    "Cycle",
    "Department",
    "Device",
    "Event",
    "IdempotencyRecord",
    "Lease",
    "Membership",
    "Node",
    "NodePool",
    "Project",
    "Role",
    "Sample",
    "ServiceTicket",
    "SetupLink",
    "Token",
    "User",
]
