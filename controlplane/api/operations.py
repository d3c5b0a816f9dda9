"""The common part of all routes: `@operation` reads query and body, adds idempotency and dry runs to writes, sets
ETags, and describes the route for OpenAPI."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Literal, TypeVar

from django.db import models, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from rest_framework.exceptions import NotAcceptable
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from controlplane.access import Actor, require_write, reread
from controlplane.actions.audit import lasting_audit
from controlplane.api import idempotency, query
from controlplane.api.auth import actor_of, request_id_of
from controlplane.api.bodies import BodyField, as_object, body_schema, read_body
from controlplane.api.errors import refusals
from controlplane.api.json_schema import Schema
from controlplane.api.problems import Problem
from controlplane.api.query import Parameter, read_query
from controlplane.api.renderers import JSON, render_json
from controlplane.http.problem_details import PROBLEM_JSON

Row = TypeVar("Row", bound=models.Model)

WRITES = frozenset({"POST", "PATCH", "DELETE", "PUT"})
HEADERS = {
    "Idempotency-Key": "The same key with the same body gives the first answer again, for 24 hours.",
    "If-Match": "Refuse (412) unless the object still has this ETag.",
    "If-None-Match": "Answer 304 when the object still has this ETag.",
}
DRY_RUN = query.switch("Run every check and answer as if it were done, but write nothing.", False)
EVENT_STREAM = "text/event-stream"
_ENCODINGS = {JSON: ", in UTF-8"}
_PROBLEM = {"$ref": "#/components/schemas/Problem"}


@dataclass(frozen=True, slots=True)
class ParameterDescription:
    """A query field or a header of a route, as the OpenAPI document shows it. `about`: its description."""

    name: str
    location: Literal["query", "header"]
    schema: Schema
    about: str


@dataclass(frozen=True, slots=True)
class Description:
    """One method of a route in the OpenAPI document. `body`: schemas by media type, None without a body. `responses`:
    schemas by status or (status, media type), None for a response without a body."""

    summary: str
    parameters: tuple[ParameterDescription, ...]
    body: Mapping[str, Schema] | None
    responses: Mapping[Any, Schema | None]


# By the view's method. Only the OpenAPI document reads it, so that no other process loads drf-spectacular.
DESCRIPTIONS: dict[Callable[..., HttpResponseBase], Description] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a route's method returns. `data`: JSON value, None for no body. `revision`: the part of the object that
    can be edited, from which the ETag is made; None for no ETag."""

    data: Any
    status: int = 200
    revision: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Call:
    """A parsed request: the actor, and the declared query and body fields. `read` parses the body on first use.
    `is_dry_run`: the transaction is rolled back after the view."""

    def __init__(
        self, request: Request, actor: Actor, query: dict[str, Any], read: Callable[[], dict[str, Any]]
    ) -> None:
        self.request, self.actor, self.query = request, actor, query
        self.is_dry_run = bool(query.pop("dry_run", False))
        self._read_body = read
        self._prepare: Callable[[], Any] = lambda: None

    @property
    def prepared(self) -> Any:
        """Return the result of the operation's `before`, None without one. Raise the refusal that `before` raised."""
        return self._prepare()

    def prepare(self, before: Callable[[], Any]) -> None:
        """Run `before` now, outside the transaction, for `prepared`. Its refusal is raised only by `prepared`: a
        repeated request must get its stored response, even if `before` would refuse it now. Other exceptions
        propagate."""
        try:
            value = before()
        except refusals() as error:
            raised = error

            def refuse() -> Any:
                raise raised

            self._prepare = refuse
        else:
            self._prepare = lambda: value

    @cached_property
    def body(self) -> dict[str, Any]:
        """Return the body's fields, parsed on first use; {} for a GET and for a body that is not JSON. Raise Invalid
        or Problem as `read_body`. Views check access first, so that a caller without access gets 404 whatever the body
        contains."""
        return self._read_body()

    def finish(self) -> None:
        """Parse the body if the view has not, so that unknown fields are refused on every route. Raises as `body`,
        which rolls back the view's transaction."""
        _ = self.body

    def require_match(self, row: Row, revision: Callable[[Any], Any]) -> Row:
        """Lock and reload the row and return it; raise Problem (412) unless If-Match names its present revision, and
        NotVisible if the row was deleted. Without If-Match, or if it is `*`, return the row as it is. `revision(row)`
        returns what the ETag is made from. Needs the view's transaction."""
        wanted = self.request.META.get("HTTP_IF_MATCH")
        if wanted is None or wanted.strip() == "*":
            return row
        reread(row, lock=True)
        held = _digest(render_json(revision(row)))
        tags = (tag.strip().strip('"').partition("-")[0] for tag in wanted.split(","))
        if held not in tags:
            raise Problem(
                412, "changed_meanwhile", "It has changed since you read it; read it again, then repeat."
            )
        return row


class OneMediaType(BaseContentNegotiation):
    """Selects JSON for every response. A client whose Accept header excludes JSON gets 406, a body of a media type
    that the route does not parse 415."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        media = (request.content_type or "").partition(";")[0].strip().lower()
        for parser in parsers:
            if parser.media_type == media:
                return parser
        taken = " or ".join(
            f"{parser.media_type}{_ENCODINGS.get(parser.media_type, '')}" for parser in parsers
        )
        raise Problem(415, "unsupported_media_type", f"Send the body as {taken}.")

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        accepted = request.META.get("HTTP_ACCEPT", "")
        if accepted.strip() and not any(_takes_json(part) for part in accepted.split(",")):
            raise NotAcceptable("Answers are application/json; accept that.")
        return renderers[0], JSON


class ApiView(APIView):
    """The base class of all REST views. It adds X-Request-ID and Vary to every response, and Cache-Control unless the
    view set it."""

    content_negotiation_class = OneMediaType

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        return Response(status=204, headers={"Allow": ", ".join(self.allowed_methods)})

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        final = super().finalize_response(request, response, *args, **kwargs)
        final.headers["X-Request-ID"] = request_id_of(request)
        final.headers.setdefault("Cache-Control", "private, no-cache")
        patch_vary_headers(final, ["Authorization", "Cookie"])
        return final


Method = Callable[..., Answer | HttpResponseBase]


def operation(
    about: str,
    *,
    answer: Schema,
    status: int = 200,
    query: Mapping[str, Parameter] | None = None,
    body: Mapping[str, BodyField] | None = None,
    body_is: Schema | None = None,
    also: tuple[int, ...] = (),
    streams: str = "",
    takes: str = JSON,
    gives: str = JSON,
    is_remembered: bool = True,
    before: Callable[..., Any] | None = None,
) -> Callable[[Method], Callable[..., HttpResponseBase]]:
    """Decorator that makes `method(self, call, **path) -> Answer` a view's method, and describes it for OpenAPI.

    `about`: its summary; `answer`: schema of the response, sent with `status`. `body`: the fields to parse; with
    `body_is` (a schema) the body is passed on as a whole, for an action that parses it. `also`: other success
    statuses, without a body. `streams`: the server-sent events that the route offers on request (served by
    controlplane.asgi, only described here). `takes`: the media type of a body that is not JSON, read from
    `call.request.data`; `gives`: that of a response that is not JSON, which the view builds itself.
    `is_remembered` False: Idempotency-Key and dry runs have no effect, and the view runs in no transaction.
    `before(call, **path)` runs ahead of the transaction and writes no rows; its result is `call.prepared`.
    """

    def decorate(method: Method) -> Callable[..., HttpResponseBase]:
        is_write = method.__name__.upper() in WRITES
        parameters = dict(query or {}) | ({"dry_run": DRY_RUN} if is_write and is_remembered else {})

        sent = body_is or (body_schema(body) if body else None)
        has_json = takes == JSON

        @wraps(method)
        def view(self: ApiView, request: Request, **path: str) -> HttpResponseBase:
            call = _read_call(request, path, parameters, None if body_is else body or {}, has_json=has_json)
            if not is_write:
                answer = method(self, call, **path)
                return _respond(request, answer) if isinstance(answer, Answer) else answer

            def work() -> HttpResponse:
                answer = method(self, call, **path)
                assert isinstance(answer, Answer), "a write answers with an object"
                call.finish()
                return _respond(request, answer)

            if not is_remembered:
                return work()
            with lasting_audit():
                if before is not None:
                    call.prepare(lambda: before(call, **path))
                return _write(call, work)

        verb = method.__name__.upper()
        described = (*_query_of(parameters), *_headers_of(verb, answer, is_remembered))
        responses = _responses({gives: answer} if answer else {}, status, also, is_write) | _stream(streams)
        DESCRIPTIONS[view] = Description(about, described, {takes: sent} if sent else None, responses)
        return view

    return decorate


def _read_call(
    request: Request,
    path: dict[str, str],
    parameters: Mapping[str, Parameter],
    fields: Mapping[str, BodyField] | None,
    *,
    has_json: bool,
) -> Call:
    # PostgreSQL accepts no NUL in a text: a look-up with one would fail instead of finding nothing.
    for value in path.values():
        if "\0" in value:
            raise Problem(404, "not_found", "There is nothing at this address.")
    values = read_query(request.query_params, parameters)
    actor = actor_of(request)
    if request.method not in WRITES:
        return Call(request, actor, values, dict)
    # Before the body is parsed: a read-only token is refused whatever it sends.
    if actor.user is not None:
        require_write(actor)
    if not has_json:
        return Call(request, actor, values, dict)
    sent = request.data if _has_body(request) else None
    return Call(
        request, actor, values, lambda: as_object(sent) if fields is None else read_body(sent, fields)
    )


def _has_body(request: Request) -> bool:
    return request.META.get("CONTENT_LENGTH") not in (None, "", "0")


def _write(call: Call, work: Callable[[], HttpResponse]) -> HttpResponse:
    """Run the work in one transaction and return its response. A dry run is rolled back and answered with 200;
    otherwise the response is stored if the request has an Idempotency-Key."""
    # Before the Idempotency-Key is read: a dry run writes nothing that a repeat could write twice.
    if call.is_dry_run:
        with transaction.atomic():
            response = work()
            transaction.set_rollback(True)
        response.status_code = 200
        return response
    header = call.request.META.get("HTTP_IDEMPOTENCY_KEY")
    if header is None or call.actor.user is None:
        with transaction.atomic():
            return work()
    key = idempotency.checked_key(header)
    sent = call.request.data if _has_body(call.request) else None
    method, path = str(call.request.method), call.request.get_full_path()
    return idempotency.once(call.actor.user, key, idempotency.digest_of_request(method, path, sent), work)


def _respond(request: Request, answer: Answer) -> HttpResponse:
    body = b"" if answer.data is None else render_json(answer.data)
    response = HttpResponse(body, status=answer.status, content_type=JSON)
    if answer.data is None:
        del response.headers["Content-Type"]
    for name, value in answer.headers.items():
        response.headers[name] = value
    if answer.revision is not None:
        # If-Match compares the first half, the editable part, so that a changed status does not refuse an edit;
        # If-None-Match the whole, so that 304 means that nothing in the response has changed.
        tag = f'"{_digest(render_json(answer.revision))}-{_digest(body)}"'
        response.headers["ETag"] = tag
        if request.method in ("GET", "HEAD") and _is_known(request.META.get("HTTP_IF_NONE_MATCH"), tag):
            return HttpResponse(status=304, headers={"ETag": tag})
    return response


def _is_known(header: str | None, tag: str) -> bool:
    if header is None:
        return False
    # A proxy that compresses responses makes their ETags weak (W/).
    return header.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in header.split(","))


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _takes_json(media_range: str) -> bool:
    name, *parameters = (part.strip().lower() for part in media_range.split(";"))
    refuses = any(part.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for part in parameters)
    return name in (JSON, PROBLEM_JSON, "application/*", "*/*") and not refuses


def _stream(about: str) -> dict[Any, Any]:
    return {(200, EVENT_STREAM): {"type": "string", "description": about}} if about else {}


def _query_of(parameters: Mapping[str, Parameter]) -> Iterator[ParameterDescription]:
    for name, parameter in parameters.items():
        yield ParameterDescription(name, "query", parameter.schema, parameter.about)


def _headers_of(verb: str, answer: Schema, is_remembered: bool) -> Iterator[ParameterDescription]:
    is_list = "results" in answer.get("properties", {})
    wanted = {
        "GET": () if is_list else ("If-None-Match",),
        "POST": ("Idempotency-Key",) if is_remembered else (),
    }
    for name in wanted.get(verb, ("Idempotency-Key", "If-Match")):
        yield ParameterDescription(name, "header", {"type": "string"}, HEADERS[name])


def _responses(
    answer: Mapping[str, Schema], status: int, also: tuple[int, ...], is_write: bool
) -> dict[Any, Any]:
    """Return the schemas of responses by status or (status, media type), None for one without a body. `answer`:
    schemas of a success by media type; `also`: other success statuses, without a body."""
    # A write has a 200 too: the response of a dry run.
    codes = (status, 200) if is_write else (status,)
    responses: dict[Any, Any] = {(code, kind): schema for code in codes for kind, schema in answer.items()}
    responses |= {} if answer else dict.fromkeys(codes)
    responses |= dict.fromkeys(also)
    responses |= {} if is_write else {304: None}
    return responses | {("4XX", PROBLEM_JSON): _PROBLEM, ("503", PROBLEM_JSON): _PROBLEM}
