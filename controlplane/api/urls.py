"""Every REST route."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
