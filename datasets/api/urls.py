"""Routes of data, below /api/v1/."""

from django.urls import path

from datasets.api import code

urlpatterns = [
    path("projects/<str:name>/code", code.ProjectCodeTrees.as_view(), name="project-code"),
    path("projects/<str:name>/code/<str:tree>", code.ProjectCodeTree.as_view(), name="project-code-tree"),
    path("projects/<str:name>/code/<str:tree>/content", code.CodeContent.as_view(), name="code-content"),
    path("projects/<str:name>/code/<str:tree>/commit", code.CodeCommit.as_view(), name="code-commit"),
    path("projects/<str:name>/code/<str:tree>/archive", code.CodeArchive.as_view(), name="code-archive"),
]
