"""Routes of the pages of data."""

from django.urls import path, re_path

from datasets.pages import caches, contents, datasets

urlpatterns = [
    path("datasets", datasets.dataset_list, name="dataset-list"),
    path("datasets/<str:dataset_id>", datasets.dataset_page, name="dataset-page"),
    path("datasets/<str:dataset_id>/delete", datasets.dataset_delete, name="dataset-delete"),
    path("datasets/<str:dataset_id>/files", contents.dataset_files, name="dataset-files"),
    path("datasets/<str:dataset_id>/diff", contents.dataset_diff, name="dataset-diff"),
    path("datasets/<str:dataset_id>/cache", caches.cache_new, name="dataset-cache"),
    re_path(r"^caches/(?P<cache_id>[^/]+)/do/(?P<verb>pin|unpin)$", caches.cache_verb, name="cache-verb"),
    path("caches/<str:cache_id>/clear", caches.cache_clear, name="cache-clear"),
]
