"""Pages of nodes: list, one node with devices and pods, and its verbs."""

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from controlplane.access import Actor, node_for, require_admin, visible_project_ids, visible_project_names
from controlplane.actions.nodes import cordon_node, uncordon_node
from controlplane.clusters.quantities import in_words
from controlplane.models import Node
from controlplane.notation import parse_duration
from dashboards.lists.nodes import NODES
from dashboards.lists.table import list_page
from dashboards.pages.base_page import attempt, show, signed_in
from dashboards.reads.devices import device_nodes, held_together, holders
from dashboards.reads.projects import palette
from jobs.node_actions import LONGEST_NOTICE_SECONDS, confirm_dead, drain_node, interrupt_node, jobs_on
from jobs.node_pods import node_detail


@signed_in
def node_list(request: HttpRequest, actor: Actor) -> HttpResponseBase:
    """Show nodes with their devices, those with a problem first."""
    page = list_page(NODES, actor, Node.objects.all(), request.GET.dict())
    return show(request, actor, "dashboards/nodes.html", {"page": page})


@signed_in
def node_page(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show one node: devices, pods, and what a drain would do."""
    node = node_for(actor, name)
    drawn = device_nodes(Node.objects.filter(pk=node.pk), visible_project_names(actor), palette())[0]
    moving = jobs_on(node) if actor.is_admin else []
    context = {
        "node": node_detail(node, visible_project_ids(actor)),
        "extras": [in_words(name, number) for name, number in sorted(node.extras.items())],
        "cells": drawn["cells"],
        "holders": holders(drawn["devices"]),
        "moving": [job for job in moving if job.is_preemptible],
        "staying": [job for job in moving if not job.is_preemptible],
    }
    return show(request, actor, "dashboards/node.html", context)


@signed_in
def node_card(request: HttpRequest, actor: Actor, name: str) -> HttpResponseBase:
    """Show the tooltip of a node in the heat map: its devices and the jobs that hold them."""
    node = node_for(actor, name)
    colours = palette()
    drawn = device_nodes(Node.objects.filter(pk=node.pk), visible_project_names(actor), colours)[0]
    context = {"node": drawn, "groups": held_together(drawn["devices"]), "palette": colours}
    response = render(request, "dashboards/parts/node_card.html", context)
    response["Cache-Control"] = "no-store"
    return response


@require_POST
@signed_in
def node_verb(request: HttpRequest, actor: Actor, name: str, verb: str) -> HttpResponseBase:
    """Cordon, uncordon or drain a node, give an interruption notice, or confirm that it is dead. For admins."""
    node = node_for(actor, name)
    require_admin(actor)
    in_seconds = _notice(request.POST.get("in", "")) if verb == "interrupt" else 0
    verbs: dict[str, tuple[Callable[[], object], str]] = {
        "cordon": (
            lambda: cordon_node(node, actor=actor),
            _("Cordoned: its pods stay, it gets no new ones."),
        ),
        "uncordon": (lambda: uncordon_node(node, actor=actor), _("It accepts pods again.")),
        "drain": (
            lambda: drain_node(node, actor=actor),
            _("Draining: preemptible jobs go back to the queue."),
        ),
    }
    verbs["interrupt"] = (
        lambda: interrupt_node(node, in_seconds, actor=actor),
        _("Jobs leave it before its provider withdraws it."),
    )
    verbs["confirm-dead"] = (
        lambda: confirm_dead(node, actor=actor),
        _("Released: its jobs go on elsewhere. It stays cordoned."),
    )
    carry_out, done = verbs[verb]
    attempt(request, carry_out, done)
    return redirect("node", name)


def _notice(text: str) -> int:
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = 0
    if not 1 <= seconds <= LONGEST_NOTICE_SECONDS:
        raise BadRequest(_("Give the time until the node is withdrawn, such as 2m, up to a day."))
    return seconds
