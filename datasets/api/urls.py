"""Routes of data, below /api/v1/."""

from django.urls import path

from datasets.api import (
    artifacts,
    caches,
    code,
    code_imports,
    contents,
    datasets,
    lineage,
    pod_code,
    pod_data,
    registrations,
    snapshots,
    subsets,
    volume_contents,
    volumes,
)

urlpatterns = [
    path("projects/<str:name>/code", code.ProjectCodeTrees.as_view(), name="project-code"),
    path("projects/<str:name>/code/<str:tree>", code.ProjectCodeTree.as_view(), name="project-code-tree"),
    path("projects/<str:name>/code/<str:tree>/content", code.CodeContent.as_view(), name="code-content"),
    path("projects/<str:name>/code/<str:tree>/commit", code.CodeCommit.as_view(), name="code-commit"),
    path("projects/<str:name>/code/<str:tree>/archive", code.CodeArchive.as_view(), name="code-archive"),
    path("projects/<str:name>/code-imports", code_imports.CodeImports.as_view(), name="code-imports"),
    path(
        "projects/<str:name>/code-imports/<str:import_id>",
        code_imports.CodeImportDetail.as_view(),
        name="code-import",
    ),
    path("pod-data/<str:cache_id>", pod_data.PodData.as_view(), name="pod-data"),
    path("pod-code/<str:job_id>/<str:attempt>", pod_code.PodCode.as_view(), name="pod-code"),
    path("datasets", datasets.Datasets.as_view(), name="datasets"),
    path("datasets/<str:dataset_id>", datasets.DatasetDetail.as_view(), name="dataset"),
    path("datasets/<str:dataset_id>/versions", datasets.Versions.as_view(), name="dataset-versions"),
    path(
        "datasets/<str:dataset_id>/versions/<str:version>",
        datasets.NamedVersion.as_view(),
        name="named-version",
    ),
    path("datasets/<str:dataset_id>/tags", datasets.Tags.as_view(), name="dataset-tags"),
    path("datasets/<str:dataset_id>/tags/<str:tag>", datasets.TagDetail.as_view(), name="dataset-tag"),
    path("datasets/<str:dataset_id>/content/lacking", contents.Lacking.as_view(), name="content-lacking"),
    path("datasets/<str:dataset_id>/content/nearby", contents.Nearby.as_view(), name="content-nearby"),
    path("datasets/<str:dataset_id>/content/packs", contents.Packs.as_view(), name="content-packs"),
    path(
        "datasets/<str:dataset_id>/content/parts/<str:sha256>", contents.Parts.as_view(), name="content-part"
    ),
    path(
        "datasets/<str:dataset_id>/content/manifests", contents.Manifests.as_view(), name="content-manifests"
    ),
    path(
        "datasets/<str:dataset_id>/registrations",
        registrations.Registrations.as_view(),
        name="dataset-registrations",
    ),
    path(
        "datasets/<str:dataset_id>/registrations/<str:registration_id>",
        registrations.RegistrationDetail.as_view(),
        name="dataset-registration",
    ),
    path("storage-classes", volumes.StorageClasses.as_view(), name="storage-classes"),
    path("volumes", volumes.Volumes.as_view(), name="volumes"),
    path("volumes/<str:volume_id>", volumes.VolumeDetail.as_view(), name="volume"),
    path("volumes/<str:volume_id>/resize", volumes.VolumeResize.as_view(), name="volume-resize"),
    path("volumes/<str:volume_id>/clone", volumes.VolumeClone.as_view(), name="volume-clone"),
    path(
        "volumes/<str:volume_id>/access-mode", volumes.VolumeAccessMode.as_view(), name="volume-access-mode"
    ),
    path(
        "volumes/<str:volume_id>/service-tier",
        volumes.VolumeServiceTier.as_view(),
        name="volume-service-tier",
    ),
    path("volumes/<str:volume_id>/files", volume_contents.VolumeFiles.as_view(), name="volume-files"),
    path("volumes/<str:volume_id>/content", volume_contents.VolumeContent.as_view(), name="volume-content"),
    path("snapshots", snapshots.Snapshots.as_view(), name="snapshots"),
    path("snapshots/<str:snapshot_id>", snapshots.SnapshotDetail.as_view(), name="snapshot"),
    path("snapshots/<str:snapshot_id>/restore", snapshots.SnapshotRestore.as_view(), name="snapshot-restore"),
    path("projects/<str:name>/datasets", datasets.ProjectDatasets.as_view(), name="project-datasets"),
    path("versions/<str:version_id>", datasets.VersionDetail.as_view(), name="version"),
    path("versions/<str:version_id>/files", contents.VersionFiles.as_view(), name="version-files"),
    path("versions/<str:version_id>/diff", contents.VersionDiff.as_view(), name="version-diff"),
    path("versions/<str:version_id>/content", contents.VersionContent.as_view(), name="version-content"),
    path("versions/<str:version_id>/manifest", contents.VersionManifest.as_view(), name="version-manifest"),
    path("versions/<str:version_id>/pack", contents.VersionPack.as_view(), name="version-pack"),
    path("versions/<str:version_id>/verify", contents.VersionVerify.as_view(), name="version-verify"),
    path("versions/<str:version_id>/subsets", subsets.Subsets.as_view(), name="subsets"),
    path("versions/<str:version_id>/subsets/<str:subset>", subsets.SubsetDetail.as_view(), name="subset"),
    path("artifacts", artifacts.Artifacts.as_view(), name="artifacts"),
    path("artifacts/<str:artifact_id>", artifacts.ArtifactDetail.as_view(), name="artifact"),
    path("artifacts/<str:artifact_id>/files", artifacts.ArtifactFiles.as_view(), name="artifact-files"),
    path("artifacts/<str:artifact_id>/content", artifacts.ArtifactContent.as_view(), name="artifact-content"),
    path(
        "artifacts/<str:artifact_id>/manifest", artifacts.ArtifactManifest.as_view(), name="artifact-manifest"
    ),
    path("artifacts/<str:artifact_id>/pack", artifacts.ArtifactPack.as_view(), name="artifact-pack"),
    path("artifacts/<str:artifact_id>/archive", artifacts.ArtifactArchive.as_view(), name="artifact-archive"),
    path("jobs/<str:job_id>/artifacts", artifacts.JobArtifacts.as_view(), name="job-artifacts"),
    path("artifacts/<str:artifact_id>/lineage", lineage.ArtifactLineage.as_view(), name="artifact-lineage"),
    path("jobs/<str:job_id>/lineage", lineage.JobLineage.as_view(), name="job-lineage"),
    path("versions/<str:version_id>/lineage", lineage.VersionLineage.as_view(), name="version-lineage"),
    path("snapshots/<str:snapshot_id>/lineage", lineage.SnapshotLineage.as_view(), name="snapshot-lineage"),
    path("caches", caches.Caches.as_view(), name="caches"),
    path("caches/<str:cache_id>", caches.CacheDetail.as_view(), name="cache"),
    path("caches/<str:cache_id>/pin", caches.CachePin.as_view(), name="cache-pin"),
    path("caches/<str:cache_id>/unpin", caches.CacheUnpin.as_view(), name="cache-unpin"),
    path("cache-locations", caches.CacheLocations.as_view(), name="cache-locations"),
    path("cache-locations/<str:name>", caches.CacheLocationDetail.as_view(), name="cache-location"),
]
