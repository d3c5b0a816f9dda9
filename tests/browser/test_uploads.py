"""Files that the browser reads become the version that `yard dataset sync` makes of them."""

import subprocess
from hashlib import sha256
from pathlib import Path

from playwright.sync_api import Dialog, Route, expect

from controlplane.cli.code.listing import list_files
from controlplane.cli.code.tree import read_tree
from datasets.manifests import FILE, Entry, make_manifest
from datasets.storage.folder import WHOLE_BYTES
from tests.browser.conftest import Open, Watched, Yard

# More than a pack may hold of one content, so that it is sent in parts.
LARGE = b"large" * (9 << 18)
SMALL = {
    "a.txt": b"alpha",
    "sub/é \U0001f600.txt": b"beta",
    "sub/\ufb01.txt": b"gamma",
    "sub/a\\b.txt": b"delta",
    "empty": b"",
}


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
    asked: list[str] = []

    def leave(dialog: Dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    seen.page.on("dialog", leave)
    seen.page.fill("#f-message", message)
    seen.page.click("#upload-go")
    seen.page.wait_for_url("**/files?version=*")
    seen.page.remove_listener("dialog", leave)
    assert asked == [], "a finished upload leaves its page without a question"


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
    seen.go(f"/datasets/{dataset}/upload")
    seen.page.set_input_files("#f-files", tmp_path / "more" / "a.txt")
    seen.page.click("#upload-go")
    expect(seen.page.locator("#upload-trouble")).to_have_text(
        "Nothing changed: these are the files of version 2."
    )


def repository(root: Path) -> Path:
    """A repository in which git, .gitignore files and .yardignore each decide over some files."""
    written(
        root,
        {
            "train.py": b"print(open('sub/a.txt').read())\n",
            "sub/a.txt": b"alpha\n",
            "sub/forced.log": b"tracked, and ignored by a pattern\n",
            "sub/.gitignore": b"b*\n!bring.back\n",
            "sub/bring.back": b"kept\n",
            "sub/b.txt": b"ignored\n",
            "sub/c\\d.txt": b"a backslash in its name\n",
            "build/x.o": b"ignored\n",
            ".gitignore": b"build/\n*.log\n",
            ".yardignore": b"data/\n",
            "data/big": b"stays\n",
            "run.sh": b"true\n",
        },
    )
    (root / "run.sh").chmod(0o755)
    git = ["git", "-C", str(root), "-c", "user.email=a@example.org", "-c", "user.name=a"]
    for words in (["init", "-q"], ["add", "-A"], ["add", "-f", "sub/forced.log"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    return written(root, {"new.py": b"pass\n", "other.log": b"ignored\n"})


def test_a_folder_becomes_the_code_that_the_command_line_makes_of_it(
    open_as: Open, yard: Yard, tmp_path: Path
):
    root = repository(tmp_path / "code")
    expected = read_tree(list_files(str(root)), {"XDG_CACHE_HOME": str(tmp_path)})
    seen = open_as("ben", "/new/job")
    seen.page.fill("#f-name", "with-code")
    seen.page.fill("#f-image", "ubuntu")
    seen.page.fill("#f-command", "sh run.sh")
    submit = seen.page.locator("#job-form button.primary")
    seen.page.set_input_files("#tree-folder", root)
    # What a browser does whose dialog is left without a choice.
    seen.page.evaluate("""() => {
      const input = document.querySelector("#tree-folder");
      input.value = "";
      input.dispatchEvent(new Event("change"));
    }""")
    expect(submit).to_be_enabled()
    expect(seen.page.locator("#f-code")).to_have_value("")
    seen.page.set_input_files("#tree-folder", root)
    expect(seen.page.locator("#f-code")).to_have_value(f"sha256:{expected.digest}")
    seen.page.click("#job-form button.primary")
    seen.page.wait_for_url("**/jobs/*-*-*")
    job = yard.call("GET", "/jobs?name=with-code")["results"][0]
    yard.jobs.append(job["id"])
    assert job["code"]["tree"] == f"sha256:{expected.digest}"
