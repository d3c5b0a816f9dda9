"""Files that the browser reads become the version that `yard dataset sync` makes of them."""

from hashlib import sha256
from pathlib import Path

from playwright.sync_api import Route

from datasets.manifests import FILE, Entry, make_manifest
from datasets.storage.folder import WHOLE_BYTES
from tests.browser.conftest import Open, Watched, Yard

# More than a pack may hold of one content, so that it is sent in parts.
LARGE = b"large" * (9 << 18)
SMALL = {"a.txt": b"alpha", "sub/é \U0001f600.txt": b"beta", "sub/\ufb01.txt": b"gamma", "empty": b""}


def hash_of(files: dict[str, bytes]) -> str:
    return make_manifest(
        Entry(path.encode(), FILE, len(content), sha256(content).digest()) for path, content in files.items()
    ).hash


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def newest(yard: Yard, dataset: str) -> dict[str, object]:
    version: dict[str, object] = yard.call("GET", f"/datasets/{dataset}/versions/latest")
    return version


def send(seen: Watched, message: str = "") -> None:
    seen.page.fill("#f-message", message)
    seen.page.click("#upload-go")
    seen.page.wait_for_url("**/files?version=*")


def test_a_folder_becomes_a_version_and_files_are_added_to_it(open_as: Open, yard: Yard, tmp_path: Path):
    assert len(LARGE) > WHOLE_BYTES
    dataset = yard.call("POST", "/projects/team-a/datasets", {"name": "uploaded"})["id"]
    seen = open_as("ben", f"/datasets/{dataset}/upload")
    files = {**SMALL, "large.bin": LARGE}
    broken: list[str] = []

    def break_once(route: Route) -> None:
        if broken:
            route.continue_()
        else:
            broken.append(route.request.url)
            route.abort("connectionreset")

    seen.page.route("**/content/packs", break_once)
    seen.page.set_input_files("#f-folder", written(tmp_path / "folder", files))
    send(seen, "first")
    assert broken, "the connection broke once"
    seen.troubles[:] = [one for one in seen.troubles if "ERR_CONNECTION_RESET" not in one]
    version = newest(yard, dataset)
    assert (version["manifest"], version["message"], version["author"]) == (hash_of(files), "first", "ben")
    seen.go(f"/datasets/{dataset}/upload")
    seen.page.set_input_files("#f-files", written(tmp_path / "more", {"a.txt": b"other"}) / "a.txt")
    send(seen)
    assert newest(yard, dataset)["manifest"] == hash_of({**files, "a.txt": b"other"})
