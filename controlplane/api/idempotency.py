"""Idempotency keys: a repeat with the same key and body gets the first response again, for 24 hours.

The response is stored in the transaction that did the work: after a crash both exist or neither. A concurrent
repeat waits for the first request.
"""

import hashlib
import hmac
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import orjson
from django.conf import settings
from django.db import IntegrityError, transaction
from django.http import HttpResponse
from django.utils import timezone

from controlplane.api.errors import to_problem
from controlplane.api.problems import Problem, bad_request, problem_response
from controlplane.api.renderers import JSON
from controlplane.http.problem_details import PROBLEM_JSON
from controlplane.models import IdempotencyRecord, User

KEPT = timedelta(hours=24)
REPLAYED = "Idempotency-Replayed"
_KEPT_HEADERS = ("ETag", "Location")
_NOT_KEPT = frozenset({429, 500, 503})
_NONCE, _CHECK = 16, 32  # bytes
UNREADABLE = (
    "This request was carried out before, and is not repeated. Its answer was kept under an earlier secret key: look "
    "the object up, or name that key in TRAINYARD_SECRET_KEY_FALLBACKS."
)


def checked_key(header: str) -> str:
    """Return the Idempotency-Key header. Raise Problem (400) unless it has 1 to 255 printable ASCII characters."""
    if not (1 <= len(header) <= 255 and header.isascii() and header.isprintable()):
        raise bad_request(
            "/", "bad_idempotency_key", "An Idempotency-Key is 1 to 255 printable ASCII characters."
        )
    return header


def digest_of_request(method: str, path: str, body: Any) -> str:
    """Return a digest of method, path and JSON body. Spacing and the order of keys in the JSON do not matter."""
    canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(b"\n".join((method.encode(), path.encode(), canonical))).hexdigest()


def once(user: User, key: str, digest: str, work: Callable[[], HttpResponse]) -> HttpResponse:
    """Run `work` in a transaction and return its response, or the stored one if `user` repeats this key. A refusal
    that `work` raises is rolled back, returned and stored too, unless a later repeat may succeed: then it is raised.
    `digest`: that of `digest_of_request`. Raise Problem: 422 if the key was used with another digest, 409 if the first
    request was rolled back meanwhile or its response cannot be decrypted."""
    try:
        with transaction.atomic():
            _forget_old()
            with transaction.atomic():
                # The unique constraint on the key makes a concurrent repeat wait until this request has its
                # response.
                kept = IdempotencyRecord.objects.create(user=user, key=key, body_digest=digest)
            response = _answer(work)
            # A temporary refusal must not be repeated for a whole day.
            if _is_temporary(response.status_code, response.headers):
                kept.delete()
            else:
                _keep(kept, response)
            return response
    except IntegrityError:
        return _repeat(user, key, digest)


def _answer(work: Callable[[], HttpResponse]) -> HttpResponse:
    """Run the work. If it raises a permanent refusal, roll back and return the refusal as a response, which is then
    stored. A temporary refusal propagates."""
    try:
        with transaction.atomic():
            return work()
    except Exception as error:
        problem = to_problem(error)
        if _is_temporary(problem.status, problem.headers):
            raise
        return problem_response(problem)


def _is_temporary(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a repeat of the request may succeed: after 429, 500, 503, and any error with Retry-After. Such a
    response is not stored."""
    return status in _NOT_KEPT or (status >= 400 and "Retry-After" in headers)


def _repeat(user: User, key: str, digest: str) -> HttpResponse:
    kept = IdempotencyRecord.objects.filter(user=user, key=key).first()
    if kept is None:
        # The first request was rolled back while this one waited for it, so the key is free again.
        raise Problem(
            409,
            "request_in_progress",
            "A request with the same key is being processed; try again.",
            headers={"Retry-After": "1"},
        )
    if kept.body_digest != digest:
        raise Problem(422, "idempotency_key_reused", "This key was used for another request; make a new key.")
    answer = _unsealed(bytes(kept.body))
    if answer is None:
        raise Problem(409, "answer_unreadable", UNREADABLE)
    headers, _, body = answer.partition(b"\n")
    response = HttpResponse(
        body, status=kept.status, content_type=JSON if kept.status < 400 else PROBLEM_JSON
    )
    for name, value in orjson.loads(headers).items():
        response.headers[name] = value
    response.headers[REPLAYED] = "true"
    return response


def _keep(kept: IdempotencyRecord, response: HttpResponse) -> None:
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    kept.status, kept.body = response.status_code, _sealed(orjson.dumps(headers) + b"\n" + response.content)
    kept.save(update_fields=["status", "body"])


def _forget_old() -> None:
    IdempotencyRecord.objects.filter(created_at__lt=timezone.now() - KEPT).delete()


def _sealed(body: bytes) -> bytes:
    """Return a response encrypted and authenticated by the secret key, because it may contain a new token's secret."""
    nonce = os.urandom(_NONCE)
    return nonce + _check(settings.SECRET_KEY, nonce, body) + _masked(settings.SECRET_KEY, nonce, body)


def _unsealed(kept: bytes) -> bytes | None:
    """Return a stored response decrypted; None if no key of this installation fits."""
    nonce, check, masked = kept[:_NONCE], kept[_NONCE : _NONCE + _CHECK], kept[_NONCE + _CHECK :]
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        body = _masked(key, nonce, masked)
        if hmac.compare_digest(_check(key, nonce, body), check):
            return body
    return None


def _check(key: str, nonce: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(
        nonce + body, key=hashlib.sha256(key.encode()).digest(), digest_size=_CHECK
    ).digest()


def _masked(key: str, nonce: bytes, text: bytes) -> bytes:
    """Return `text` XORed with a one-time pad made from key and nonce; applied twice it gives `text` again. A nonce
    must never be used twice."""
    pad = hashlib.shake_256(key.encode() + nonce).digest(len(text))
    return (int.from_bytes(text, "big") ^ int.from_bytes(pad, "big")).to_bytes(len(text), "big")
