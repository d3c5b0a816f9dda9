"""Registers a route below /api/v1/."""

from django.http import HttpRequest, HttpResponse
from django.urls import path


def volumes(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("newcomer-volumes", volumes, name="newcomer-volumes")]
