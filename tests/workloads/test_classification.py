"""Image classification: its inputs, and the program from its settings to a checkpoint."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from PIL import Image

from controlplane.logstore.progress import parse_progress
from workloads.common.records import NoData, Skipped, TooManyBadRecords
from workloads.image_classification import prepare, train
from workloads.image_classification.data import (
    FINDINGS,
    Pictures,
    classes_of,
    read_folders,
    read_table,
)


@pytest.fixture(autouse=True)
def kept_signal():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def paint(file: Path, tone: int = 100) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 24), (tone, 20, 20)).save(file)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for part in ("train", "val"):
        for number, kind in enumerate(("cat", "dog")):
            for picture in range(3):
                paint(tmp_path / part / kind / f"{picture}.jpg", 60 * number)
    return tmp_path


def test_folders_are_classes_and_what_is_no_picture_is_skipped(folders: Path, capsys):
    (folders / "train" / "dog" / "3.jpg").write_bytes(b"not a picture")
    (folders / "train" / "dog" / "notes.txt").write_text("no picture either, and none by its name")
    skipped = Skipped()
    classes = classes_of(folders / "train")
    found = read_folders(folders / "train", classes, skipped)
    assert classes == ["cat", "dog"]
    assert [sample.target for sample in found] == [0, 0, 0, 1, 1, 1]
    assert skipped.count == 1
    assert "skipped dog/3.jpg: 3.jpg is no picture" in capsys.readouterr().out
    with pytest.raises(TooManyBadRecords):
        read_folders(folders / "train", classes, Skipped(limit=0))
    paint(folders / "val" / "bird" / "0.jpg")
    assert len(read_folders(folders / "val", classes, skipped)) == 6
    assert "class 'bird' is not among those" in capsys.readouterr().out


def test_pictures_are_cut_to_the_side_in_the_middle_or_at_random(folders: Path):
    found = read_folders(folders / "train", ["cat", "dog"], Skipped())
    for is_augmented in (True, False):
        picture, target = Pictures(found, 16, is_augmented=is_augmented)[5]
        assert (tuple(picture.shape), int(target)) == ((3, 16, 16), 1)


def test_findings_of_chest_x_rays_are_fifteen_labels_a_picture(tmp_path: Path, capsys):
    for number in range(2):
        paint(tmp_path / f"{number}.png")
    table = tmp_path / "labels.csv"
    rows = ["0.png,Mass|Hernia", "1.png,No Finding", "gone.png,Mass", "1.png,Flu", "../1.png,Edema"]
    table.write_text("\n".join(["Image Index,Finding Labels", *rows]))
    found = read_table(table, tmp_path, Skipped())
    assert len(FINDINGS) == 15
    assert [{FINDINGS[at] for at, flag in enumerate(row.target) if flag} for row in found] == [
        {"Mass", "Hernia"},
        {"No Finding"},
        {"Edema"},
    ]
    assert all(row.picture.parent == tmp_path for row in found)
    printed = capsys.readouterr().out
    assert "labels.csv:4: picture gone.png is missing" in printed
    assert "label 'Flu' is none of the 15 findings" in printed
    table.write_text("a,b\n")
    with pytest.raises(NoData, match="no columns"):
        read_table(table, tmp_path, Skipped())


def test_imagenets_validation_pictures_are_sorted_into_folders_once(tmp_path: Path, monkeypatch, capsys):
    for number in (1, 2):
        paint(tmp_path / "val" / f"ILSVRC2012_val_0000000{number}.JPEG")
    truth = tmp_path / "truth.csv"
    lines = [
        "ImageId,PredictionString",
        "ILSVRC2012_val_00000001,n01751748 1 2 3 4",
        "ILSVRC2012_val_00000002 n0210",
    ]
    truth.write_text("\n".join([*lines, "ILSVRC2012_val_00000003 n0210", "x ../up", ""]))
    for _ in range(2):
        assert prepare.main(["--data-dir", str(tmp_path), "--truth", str(truth)]) == 0
        assert "2 pictures of" in capsys.readouterr().out
    assert (tmp_path / "val" / "n01751748" / "ILSVRC2012_val_00000001.JPEG").is_file()
    assert (tmp_path / "val" / "n0210" / "ILSVRC2012_val_00000002.JPEG").is_file()
    assert prepare.main(["--data-dir", str(tmp_path), "--truth", str(tmp_path / "no")]) == 1
    capsys.readouterr()
    monkeypatch.setenv("MAX_BAD_RECORDS", "0")
    assert prepare.main(["--data-dir", str(tmp_path), "--truth", str(truth)]) == 1
    assert "More than 0 records cannot be used" in capsys.readouterr().out


@pytest.mark.parametrize(("labels", "untrained"), [("", 1.38), ("drawn", 0.69)])
def test_it_learns_drawn_pictures_with_one_class_or_several_labels(
    tmp_path: Path, labels, untrained, monkeypatch, capsys
):
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(tmp_path))
    arguments = ["--model", "tiny", "--epochs", "2", "--learning-rate", "0.1"]
    assert train.main([*arguments, "--labels", labels]) == 0
    progress = [found for line in capsys.readouterr().out.splitlines() if (found := parse_progress(line, 0))]
    assert (progress[-1].epoch, progress[-1].step) == (2, 16)
    assert progress[-1].accuracy > 0.9
    assert progress[-1].loss < untrained / 2


def test_it_trains_on_folders_of_pictures_and_names_what_is_missing(folders: Path, monkeypatch, capsys):
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(folders / "c"))
    arguments = ["--model", "tiny", "--epochs", "1", "--batch-size", "2", "--side", "16"]
    assert train.main([*arguments, "--data-dir", str(folders)]) == 0
    assert "validated: accuracy" in capsys.readouterr().out
    broken = folders / "train" / "cat" / "1.jpg"
    Image.effect_noise((200, 200), 50).save(broken)
    broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(folders / "d"))
    assert train.main([*arguments, "--data-dir", str(folders)]) == 0
    assert f": {broken} cannot be read: image file is truncated" in capsys.readouterr().out
    monkeypatch.setenv("MAX_BAD_RECORDS", "0")
    assert train.main([*arguments, "--data-dir", str(folders)]) == 0, "nothing is left to train"
    monkeypatch.setenv("TRAINYARD_CHECKPOINT_DIR", str(folders / "e"))
    assert train.main([*arguments, "--data-dir", str(folders)]) == 1
    assert "More than 0 records cannot be used" in capsys.readouterr().out
    assert train.main([*arguments, "--data-dir", str(folders / "no")]) == 1
    assert "Pictures are in train/CLASS/ of DATA_DIR" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        train.read_settings(["--model", "alexnet"])
    assert "efficientnet-b7" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.read_settings(["--side", "wide"])
    assert "'wide' is not 0 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        train.read_settings(["--labels", "labels.csv"])
    assert "LABELS 'labels.csv' needs DATA_DIR" in capsys.readouterr().err
