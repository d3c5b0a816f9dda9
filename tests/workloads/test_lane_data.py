"""Labels in the TuSimple format, masks, the preparation of a data directory, and the way back from masks to lanes."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from workloads.common.records import BadRecord, Skipped, TooManyBadRecords
from workloads.lane_detection import prepare as preparing
from workloads.lane_detection import synthetic
from workloads.lane_detection.data import Lanes, read_list
from workloads.lane_detection.decode import lanes_of
from workloads.lane_detection.labels import Label, draw_mask, parse_label, slots_of
from workloads.lane_detection.metric import score
from workloads.lane_detection.scnn import SMALL
from workloads.lane_detection.synthetic import ROWS, draw_road, write_clips


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Five clips: three to train, one to validate, one to test."""
    folder = tmp_path_factory.mktemp("lanes")
    write_clips(folder, 5)
    return folder


@pytest.fixture
def folder(clips: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(clips, tmp_path / "data"))


def straight(*bottoms: float) -> Label:
    """Lanes from the middle of the horizon to these places at the lower border."""
    lanes = tuple(tuple(640 + (bottom - 640) * (row - 230) / 490 for row in ROWS) for bottom in bottoms)
    return Label("a.jpg", ROWS, lanes)


def slot_bottoms(label: Label) -> list[int | None]:
    return [None if lane is None else round(lane[-1][0]) for lane in slots_of(label)]


def test_lanes_get_the_slot_of_their_place_beside_the_car():
    all_four = straight(1400, 100, 900, -300)
    ends = [None if lane is None else round(lane[-1][0], -2) for lane in slots_of(all_four)]
    assert ends[1:3] == [100, 900]
    assert ends[0] is not None
    assert ends[3] is not None
    assert slot_bottoms(straight(300)) == [None, 307, None, None]
    assert [lane is not None for lane in slots_of(straight(900, 1200))] == [False, False, True, True]


def test_of_more_lanes_the_outermost_have_no_slot_and_short_ones_do_not_exist():
    five = straight(-500, -100, 300, 900, 1300)
    ends = [lane[-1][0] for lane in slots_of(five) if lane is not None]
    assert [round(end) for end in ends[1:]] == slot_bottoms(straight(300, 900, 1300))[1:]
    short = Label("a.jpg", ROWS, (tuple([-2.0] * (len(ROWS) - 3) + [500.0, 490.0, 480.0]),))
    assert slots_of(short) == (None,) * 4


def test_a_mask_has_the_number_of_the_slot_where_the_lane_is():
    mask = np.asarray(draw_mask(slots_of(straight(300, 900))))
    assert mask.shape == (720, 1280)
    assert set(np.unique(mask)) == {0, 2, 3}
    row = mask[600]
    assert 12 <= (row == 2).sum() <= 24  # 15 across the line
    left = 640 + (300 - 640) * (600 - 230) / 490
    assert abs(np.flatnonzero(row == 2).mean() - left) < 2


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"raw_file": "a.jpg", "h_samples": [1, 2], "lanes": [[1]]}', "lane 0 has 1 points for 2 rows"),
        ('{"raw_file": "../a.jpg", "h_samples": [1], "lanes": []}', "outside"),
        ('{"raw_file": "/a.jpg", "h_samples": [1], "lanes": []}', "outside"),
        ('{"raw_file": "a.jpg", "h_samples": "all", "lanes": []}', "h_samples is not a list of numbers"),
        ('{"raw_file": "a.jpg", "h_samples": [NaN], "lanes": []}', "h_samples"),
        ('{"raw_file": "a.jpg", "h_samples": [1]}', "no lanes"),
        ('{"h_samples": [1], "lanes": []}', "no raw_file"),
        ("[1, 2]", "no raw_file"),
        ('{"raw_file": "a.jpg", ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
    ],
)
def test_a_bad_label_is_named_by_what_is_wrong(line, why):
    with pytest.raises(BadRecord, match=why):
        parse_label(line)


def test_preparation_writes_masks_and_lists_and_may_be_repeated(folder: Path):
    prepared = preparing.prepare(folder, Skipped())
    assert (prepared.train, prepared.validation) == (3, 1)
    lists = folder / "seg_label" / "list"
    before = (lists / "train.txt").read_text()
    masks = {file: file.stat().st_mtime_ns for file in folder.rglob("*.png")}
    assert len(masks) == 4
    assert preparing.prepare(folder, Skipped()) == prepared
    assert (lists / "train.txt").read_text() == before
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*.png")} == masks
    picture, classes, exists = Lanes(read_list(folder, "train", Skipped()), SMALL, is_augmented=True)[0]
    assert (picture.shape, classes.shape, exists.shape) == ((3, 72, 128), (72, 128), (4,))
    assert set(classes.unique().tolist()) <= {0, 1, 2, 3, 4}


def test_broken_lines_and_missing_pictures_are_named_counted_and_skipped_up_to_a_limit(folder: Path, capsys):
    labels = folder / "label_data_0313.json"
    first = json.loads(labels.read_text().splitlines()[0])
    (folder / first["raw_file"]).unlink()
    with labels.open("a") as file:
        file.write("{broken\n\n")
    skipped = Skipped(limit=2)
    assert preparing.prepare(folder, skipped).train == 2
    assert skipped.count == 2
    printed = capsys.readouterr().out
    assert f"skipped label_data_0313.json:1: picture {first['raw_file']} is missing" in printed
    assert "skipped label_data_0313.json:4: not JSON" in printed
    with pytest.raises(TooManyBadRecords, match="More than 1 records cannot be used"):
        preparing.prepare(folder, Skipped(limit=1))


def test_damaged_pictures_and_lines_of_a_list_are_skipped(folder: Path):
    preparing.prepare(folder, Skipped())
    listed = folder / "seg_label" / "list" / "train.txt"
    lines = listed.read_text().splitlines()
    (folder / lines[0].split()[0]).write_bytes(b"not a picture")
    listed.write_text("\n".join([*lines, "a b 1 1 1", lines[1].replace(".png", "-gone.png")]))
    skipped = Skipped()
    found = read_list(folder, "train", skipped)
    assert len(found) == 2
    assert skipped.count == 3
    found[0].picture.write_bytes(found[0].picture.read_bytes()[:-1000])
    with pytest.raises(BadRecord, match=r"jpg cannot be read: image file is truncated"):
        Lanes(found, SMALL, is_augmented=False)[0]


def test_an_archive_fills_an_empty_directory_once(clips: Path, tmp_path: Path):
    with tarfile.open(tmp_path / "data.tar.gz", "w:gz") as archive:
        archive.add(clips, ".")
    target = tmp_path / "target"
    assert preparing.main(["--data-dir", str(target), "--source", str(tmp_path / "data.tar.gz")]) == 0
    assert (target / "seg_label" / "list" / "val.txt").read_text().count("\n") == 1
    assert preparing.main(["--data-dir", str(target), "--source", "/nowhere"]) == 0


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside-of-lanes", "link"])
def test_an_archive_writes_nothing_outside_of_the_directory(name: str, tmp_path: Path, capsys):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = (tarfile.SYMTYPE, "/etc") if name == "link" else (tarfile.REGTYPE, "")
    with tarfile.open(tmp_path / "data.tar", "w") as archive:
        archive.addfile(member)
    target = tmp_path / "target"
    assert preparing.main(["--data-dir", str(target), "--source", str(tmp_path / "data.tar")]) == 1
    assert f"it has '{name}', which is no file or directory in it" in capsys.readouterr().out
    assert not (tmp_path / "outside").exists()
    assert list(target.iterdir()) == []


def test_no_data_is_said_in_words(tmp_path: Path, capsys):
    assert preparing.main(["--data-dir", str(tmp_path)]) == 1
    assert "Set SOURCE" in capsys.readouterr().out
    assert preparing.main(["--data-dir", str(tmp_path), "--source", "/nowhere"]) == 1
    assert "/nowhere is neither" in capsys.readouterr().out


def test_an_archive_that_breaks_off_and_too_many_bad_records_are_said_in_words(
    clips: Path, tmp_path: Path, monkeypatch, capsys
):
    for name in ("data.tar.gz", "data.zip"):
        (tmp_path / name).write_bytes(b"no archive")
        target = str(tmp_path / f"of-{name}")
        assert preparing.main(["--data-dir", target, "--source", str(tmp_path / name)]) == 1
        assert f"SOURCE {tmp_path / name} cannot be unpacked" in capsys.readouterr().out
    monkeypatch.setenv("MAX_BAD_RECORDS", "0")
    (tmp_path / "label_data_0313.json").write_text("{broken\n")
    assert preparing.main(["--data-dir", str(tmp_path)]) == 1
    assert "More than 0 records cannot be used" in capsys.readouterr().out


def test_as_many_clips_are_drawn_as_asked_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(synthetic, "_write_clip", lambda _folder, number, _seed: {"raw_file": number})
    write_clips(tmp_path, 60)
    numbers = [
        json.loads(line)["raw_file"]
        for name in synthetic.SPLIT
        for line in (tmp_path / name).read_text().splitlines()
    ]
    assert numbers == list(range(60))


def test_the_same_seed_draws_the_same_road():
    first, lanes = draw_road(3)
    second, same = draw_road(3)
    assert first.tobytes() == second.tobytes()
    assert lanes == same
    assert all(len(lane) == len(ROWS) for lane in lanes)


def test_a_perfect_answer_of_the_network_decodes_to_the_lanes():
    _, lanes = draw_road(2)
    label = Label("a.jpg", ROWS, tuple(tuple(map(float, lane)) for lane in lanes))
    slots = slots_of(label)
    mask = draw_mask(slots).resize((512, 288), Image.Resampling.NEAREST)
    logits = (
        torch.nn.functional.one_hot(torch.from_numpy(np.array(mask, dtype=np.int64)), 5).permute(2, 0, 1)
        * 20.0
    )
    exists = torch.tensor([9.0 if slot is not None else -9.0 for slot in slots])
    found = lanes_of(logits, exists, ROWS)
    assert len(found) == sum(slot is not None for slot in slots)
    assert score(found, label.lanes, ROWS).accuracy > 0.95
    assert lanes_of(logits, torch.full((4,), -9.0), ROWS) == []
