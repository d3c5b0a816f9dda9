"""What may be committed: nothing third-party, no path of one machine, no foreign host in a page, pinned hashes."""

import json
import re
from pathlib import Path

import pytest

from tests.house.sources import ROOT, python_files
from tests.house.test_docs import tracked
from tools.install import BROWSER_FILES

LOCKS = [f"requirements{suffix}.txt" for suffix in ("", "-control", "-workloads", "-netapp", "-dev", "-uv")]
LARGEST_BYTES = 1 << 20
TEXT = {
    ".py",
    ".md",
    ".toml",
    ".txt",
    ".in",
    ".json",
    ".js",
    ".css",
    ".html",
    ".yaml",
    ".yml",
    ".csv",
    ".svg",
    ".sh",
}
# a pod's working directory on a cluster is the same everywhere: its checkpoints may be named
MACHINE_PATH = re.compile(
    r"(?<![\w.])/(?:home/[a-z]|root/\.|Users/[A-Z]|work/(?!checkpoints\b)|tmp/h/)[\w./-]*"
)
HOST = re.compile(r"""(?:https?:)?//([a-z0-9.-]+\.[a-z]{2,})(?=[/"'\s:)])""", re.IGNORECASE)
# XML namespaces are names, not addresses
NAMESPACES = {"www.w3.org"}
MIGRATION = re.compile(r"\d{4}_[a-z0-9_]+")
AUTOMATIC = re.compile(r"\d{4}_auto_\d+|.*_and_more$")


def text_files() -> list[Path]:
    return [
        path for path in tracked(".") if path.suffix in TEXT or path.name in {"Makefile", "run", ".gitignore"}
    ]


def test_no_file_names_a_path_of_one_machine() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): MACHINE_PATH.findall(path.read_text(encoding="utf-8"))
        for path in text_files()
        if path != Path(__file__)
    }
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_no_file_is_large() -> None:
    large = [
        path.relative_to(ROOT).as_posix() for path in tracked(".") if path.stat().st_size > LARGEST_BYTES
    ]
    assert not large, "third-party files come at install, data at run time"


def test_pages_load_nothing_from_a_foreign_host() -> None:
    pages = [*tracked("static"), *tracked("dashboards/templates"), *tracked("dashboards/templatetags")]
    foreign = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in pages
        if path.suffix in {".html", ".js", ".css", ".svg", ".py"}
        for host in HOST.findall(path.read_text(encoding="utf-8"))
        if host not in NAMESPACES
    ]
    assert not foreign, "\n".join(foreign)


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_is_pinned_and_hashed(name: str) -> None:
    packages = locked(name)
    loose = [entry.split()[0] for entry in packages if "==" not in entry or "--hash=sha256:" not in entry]
    assert packages
    assert not loose
    assert "index-url" not in (ROOT / name).read_text()


@pytest.mark.parametrize("name", ["requirements-control.txt", "requirements-workloads.txt"])
def test_an_image_has_the_very_packages_that_are_tested(name: str) -> None:
    tested = {entry.split()[0] for entry in locked("requirements.txt")}
    assert not {entry.split()[0] for entry in locked(name)} - tested, "run `make lock`"


def locked(name: str) -> list[str]:
    entries = re.split(r"\n(?=[a-z0-9])", (ROOT / name).read_text(), flags=re.IGNORECASE)
    return [entry for entry in entries if not entry.startswith("#")]


def test_the_browser_libraries_are_locked_by_integrity_and_name_no_mirror() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    libraries = {name: package for name, package in packages.items() if name}
    assert libraries
    assert not [
        name for name, package in libraries.items() if not package.get("integrity", "").startswith("sha512-")
    ]
    mirrors = [package.get("resolved", "") for package in libraries.values()]
    assert not [url for url in mirrors if url and not url.startswith("https://registry.npmjs.org/")]


def test_pages_are_served_nothing_that_only_tests_need() -> None:
    served = set(re.findall(r"^(?:@[^/]+/)?[^/]+", "\n".join(BROWSER_FILES), re.MULTILINE))
    assert served == json.loads((ROOT / "package.json").read_text())["dependencies"].keys()


def test_migrations_are_linear_and_named() -> None:
    for app in ("controlplane", "jobs"):
        names = sorted(path.stem for path in (ROOT / app / "migrations").glob("[0-9]*.py"))
        assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]
        assert not [name for name in names if not MIGRATION.fullmatch(name) or AUTOMATIC.fullmatch(name)]


def test_a_suppressed_finding_says_why() -> None:
    bare = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in python_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"#\s*(noqa(:\s*[A-Z0-9, ]+)?|type:\s*ignore(\[[\w, -]+\])?)\s*$", line)
    ]
    assert not bare, f"a reason belongs in the same line: {', '.join(bare)}"


def test_nothing_is_left_to_do_in_the_code() -> None:
    mark = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    own = [
        path
        for path in text_files()
        if path.suffix in {".py", ".js", ".css", ".html"} and path != Path(__file__)
    ]
    assert not [path.name for path in own if mark.search(path.read_text(encoding="utf-8"))]
