"""TRAINYARD_CLUSTERS, the image catalogue and Kubernetes' `$(NAME)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.config.images import BUILT_IN, ImageUnknown, load_catalogue
from controlplane.engines.local.environment import expand
from controlplane.engines.registry import DEFAULT_CLUSTERS, ClustersSyntaxError, open_engine, parse_clusters


def test_the_default_is_two_nodes_of_eight():
    (cluster,) = parse_clusters(DEFAULT_CLUSTERS)
    assert (cluster.name, cluster.engine) == ("local", "local")
    node = {"devices": 8, "memory_mib": 32768, "pool": "default"}
    assert cluster.settings == {"nodes": {"dgx1-1": node, "dgx1-2": node}}


def test_pools_several_clusters_and_real_gpus():
    first, second = parse_clusters("memory:a=2x1000@dgx, b=0x1 ; local:nvml")
    assert first.settings["nodes"]["a"]["pool"] == "dgx"
    assert first.settings["nodes"]["b"]["devices"] == 0
    assert (second.engine, second.settings) == ("local", {"nodes": "nvml"})


@pytest.mark.parametrize(
    "text",
    ["local", "local:", "docker:a=1x1", "local:a", "local:a=1", "local:a=x1", "local:a=-1x5", "local:A=1x1",
     "local:a=1x1,a=1x1", "local:a=1x1;local:b=1x1", "local:a=65x1", "local:a=1x0", "memory:nvml", "local:a=1x1@P",
     "local:a=1.5x1", "local:a=1x1,"],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_words(text: str):
    with pytest.raises(ClustersSyntaxError, match="TRAINYARD_CLUSTERS"):
        parse_clusters(text)


def test_an_engine_that_does_not_exist_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match="docker"):
        open_engine("docker", {}, tmp_path)


@pytest.mark.parametrize(
    "reference",
    ["quickstart", "quickstart:latest", "gcr.io/run-ai-demo/quickstart", "gcr.io/run-ai-demo/quickstart:1.2",
     "registry/quickstart:1", "localhost:5000/quickstart", "quickstart@sha256:0123"],
)  # fmt: skip
def test_the_quickstart_is_found_by_all_of_its_names(reference: str):
    image = load_catalogue(BUILT_IN).find(reference)
    assert image is not None
    assert image.name == "quickstart"
    assert all(file.is_file() for file in image.files)


def test_commands_and_args_replace_the_images_as_in_kubernetes(tmp_path: Path):
    path = tmp_path / "images.toml"
    path.write_text('[images.x]\ncommand = ["run"]\nargs = ["a"]\n[images.bare]\n')
    catalogue = load_catalogue(path, tmp_path / "none.toml")
    assert catalogue.command_line("x", (), ()) == ("run", "a")
    assert catalogue.command_line("x", (), ("b",)) == ("run", "b")
    assert catalogue.command_line("x", ("c",), ()) == ("c",)
    assert catalogue.command_line("unknown", ("c",), ("d",)) == ("c", "d")
    assert catalogue.command_line("bare", (), ("a", "b")) == (
        "a",
        "b",
    )  # no entry point: the args are the command
    for reference, args in (("unknown", ("a",)), ("", ("a",)), ("bare", ())):
        with pytest.raises(ImageUnknown, match=r"images: x\.$"):
            catalogue.command_line(reference, (), args)


def test_args_reach_the_program_of_every_image_that_comes_along():
    catalogue = load_catalogue(BUILT_IN)
    assert catalogue.command_line("ubuntu:22.04", (), ("sleep", "10")) == ("sleep", "10")
    assert catalogue.command_line("python:3", (), ("train.py",)) == ("python", "train.py")
    assert all(catalogue.command_line(image.name, (), ("--x",))[-1] == "--x" for image in catalogue.images)
    assert all(
        "-c" not in image.command for image in catalogue.images
    )  # what follows a script are no args of it


def test_admins_entries_replace_the_built_in_ones(tmp_path: Path):
    path = tmp_path / "images.toml"
    path.write_text('[images.quickstart]\ncommand = ["mine"]\n')
    assert load_catalogue(BUILT_IN, path).command_line("quickstart", (), ()) == ("mine",)


@pytest.mark.parametrize(
    "text",
    [
        "[images",
        "images = 5",
        "[images]\nx = 5",
        "[images.x]\ncommand = 5",
        '[images.x]\ncommand = "true"',
        "[images.x]\nenv = 5",
        "[images.x]\nfiles = [5]",
        "[images.x]\nworking_dir = 5",
    ],
)
def test_an_entry_that_is_no_image_is_a_value_error_that_names_its_file(tmp_path: Path, text: str):
    path = tmp_path / "images.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"images\.toml"):
        load_catalogue(BUILT_IN, path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("$(A)-$(A)", "1-1"), ("$(B)", "$(B)"), ("$$(A)", "$(A)"), ("$A ${A}", "$A ${A}"), ("kill $$", "kill $$"),
     ("$(seq 3)", "$(seq 3)"), ("", "")],
)  # fmt: skip
def test_references_in_arguments(text: str, expected: str):
    assert expand(text, {"A": "1"}) == expected


def test_a_kubernetes_cluster_is_declared_by_a_kubeconfig_or_by_being_in_it(tmp_path: Path):
    path = tmp_path / "kubeconfig"
    path.write_text("apiVersion: v1")
    inside, other = parse_clusters("kubernetes:in-cluster"), parse_clusters(f"kubernetes:{path}@admin@prod")
    assert (inside[0].engine, inside[0].credentials) == ("kubernetes", {"in_cluster": True})
    assert other[0].credentials == {"kubeconfig": "apiVersion: v1", "context": "admin@prod"}
    assert (inside[0].settings, other[0].settings) == ({}, {})
    with pytest.raises(ClustersSyntaxError, match="cannot be read"):
        parse_clusters(f"kubernetes:{tmp_path}/nothing")
