"""Routes of the pages of data."""

from django.urls import path, re_path

from datasets.pages import (
    artifacts,
    cache_locations,
    caches,
    contents,
    dataset_forms,
    datasets,
    lineage,
    snapshots,
    subsets,
    uploads,
    volumes,
)

VOLUME_VERBS = "snapshot|resize|access-mode|tier|keep|clone"

urlpatterns = [
    path("datasets", datasets.dataset_list, name="dataset-list"),
    path("new/dataset", dataset_forms.dataset_new, name="dataset-new"),
    path("datasets/<str:dataset_id>", datasets.dataset_page, name="dataset-page"),
    path("datasets/<str:dataset_id>/edit", dataset_forms.dataset_edit, name="dataset-edit"),
    path("datasets/<str:dataset_id>/tags", dataset_forms.tag_set, name="dataset-tag"),
    path("datasets/<str:dataset_id>/tags/remove", dataset_forms.tag_remove, name="dataset-untag"),
    path("datasets/<str:dataset_id>/delete", datasets.dataset_delete, name="dataset-delete"),
    path("datasets/<str:dataset_id>/files", contents.dataset_files, name="dataset-files"),
    path("datasets/<str:dataset_id>/diff", contents.dataset_diff, name="dataset-diff"),
    path("datasets/<str:dataset_id>/cache", caches.cache_new, name="dataset-cache"),
    path("datasets/<str:dataset_id>/upload", uploads.dataset_upload, name="dataset-upload"),
    path("datasets/<str:dataset_id>/register", uploads.dataset_register, name="dataset-register"),
    path("datasets/<str:dataset_id>/subset", subsets.subset_new, name="subset-new"),
    path("datasets/<str:dataset_id>/subset/delete", subsets.subset_delete, name="subset-delete"),
    re_path(r"^caches/(?P<cache_id>[^/]+)/do/(?P<verb>pin|unpin)$", caches.cache_verb, name="cache-verb"),
    path("caches/<str:cache_id>/clear", caches.cache_clear, name="cache-clear"),
    path("cache-locations", cache_locations.location_list, name="cache-locations"),
    path("new/cache-location", cache_locations.location_new, name="cache-location-new"),
    path("cache-locations/<str:name>/edit", cache_locations.location_edit, name="cache-location-edit"),
    path("cache-locations/<str:name>/delete", cache_locations.location_delete, name="cache-location-delete"),
    path("artifacts/<str:artifact_id>", artifacts.artifact_page, name="artifact"),
    path("artifacts/<str:artifact_id>/delete", artifacts.artifact_delete, name="artifact-delete"),
    path("lineage/<str:kind>/<str:key>", lineage.lineage_page, name="lineage"),
    path("volumes", volumes.volume_list, name="volumes"),
    path("new/volume", volumes.volume_new, name="volume-new"),
    path("volumes/<str:volume_id>", volumes.volume_page, name="volume"),
    path("volumes/<str:volume_id>/file", volumes.volume_file, name="volume-file"),
    re_path(
        rf"^volumes/(?P<volume_id>[^/]+)/do/(?P<verb>{VOLUME_VERBS})$",
        volumes.volume_verb,
        name="volume-verb",
    ),
    path("volumes/<str:volume_id>/delete", volumes.volume_delete, name="volume-delete"),
    path("snapshots/<str:snapshot_id>/restore", snapshots.snapshot_restore, name="snapshot-restore"),
    path("snapshots/<str:snapshot_id>/delete", snapshots.snapshot_delete, name="snapshot-delete"),
]
