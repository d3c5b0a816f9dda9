"""Registers a page."""

from django.http import HttpRequest, HttpResponse
from django.urls import path


def volumes(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [path("newcomer/volumes", volumes, name="newcomer-page")]
