"""Artifacts: immutable, written whole or not at all, replaced only by their own kind."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path

import pytest

from qfunc.errors import DeployError
from qfunc.lowering.artifact import Artifact

FIRST = Artifact({"model.onnx": b"first", "qfunc.json": b'{"a": 1}'})
SECOND = Artifact({"model.onnx": b"second", "qfunc.json": b'{"a": 2}'})


def content(place: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in place.iterdir()}


def test_files_are_immutable() -> None:
    source = {"qfunc.json": b"{}"}
    made = Artifact(source)
    source["later"] = b""
    assert list(made.files) == ["qfunc.json"]
    with pytest.raises(TypeError):
        made.files["more"] = b""  # type: ignore[index]
    with pytest.raises(AttributeError):
        made.files = {}  # type: ignore[misc]


def test_the_report_is_read_anew() -> None:
    FIRST.report["a"] = 5
    assert FIRST.report == {"a": 1}


def test_copies_and_pickles() -> None:
    for made in (copy.deepcopy(FIRST), pickle.loads(pickle.dumps(FIRST))):
        assert dict(made.files) == dict(FIRST.files)
    assert repr(FIRST) == "Artifact(files=['model.onnx', 'qfunc.json'])"


def test_save_writes_every_file_and_nothing_else(tmp_path: Path) -> None:
    place = FIRST.save(tmp_path / "deep" / "out")
    assert content(place) == dict(FIRST.files)
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["out"]


def test_save_takes_relative_and_existing_empty_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert FIRST.save("out") == tmp_path / "out"
    (tmp_path / "empty").mkdir()
    assert content(FIRST.save("empty/")) == dict(FIRST.files)
    assert content(FIRST.save(os.path.join("out", "..", "other"))) == dict(FIRST.files)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "other", "out"]


def test_save_replaces_an_earlier_artifact(tmp_path: Path) -> None:
    FIRST.save(tmp_path / "out")
    assert content(SECOND.save(tmp_path / "out")) == dict(SECOND.files)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_save_follows_a_link(tmp_path: Path) -> None:
    FIRST.save(tmp_path / "out")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    SECOND.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "out") == dict(SECOND.files)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("failing", ["write_bytes", "first replace", "last replace"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool, failing: str) -> None:
    if existing:
        FIRST.save(tmp_path / "out")
    write, replace = Path.write_bytes, os.replace

    def full(self: Path, data: bytes) -> int:
        if failing == "write_bytes" and self.name == "qfunc.json":
            write(self, data[:1])
            raise OSError("no space left")
        return write(self, data)

    def moved(source: Path, target: Path) -> None:
        last = target.name == "out" and (source / "model.onnx").read_bytes() == b"second"
        if failing == ("last replace" if last else "first replace"):
            raise OSError("no rename")
        replace(source, target)

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(os, "replace", moved)
    if failing == "first replace" and not existing:
        SECOND.save(tmp_path / "out")
        return
    with pytest.raises(OSError, match="no "):
        SECOND.save(tmp_path / "out")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["out"] * existing
    if existing:
        assert content(tmp_path / "out") == dict(FIRST.files)


def test_save_refuses_a_place_that_holds_something_else(tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "notes.txt").write_text("keep me")
    with pytest.raises(DeployError) as caught:
        FIRST.save(place)
    assert str(caught.value) == (
        f"Artifact.save('{place}'): found a directory with other files (notes.txt), wanted an empty directory. "
        "Choose a new or empty directory."
    )
    FIRST.save(tmp_path / "out")
    (tmp_path / "out" / "notes.txt").write_text("keep me")
    with pytest.raises(DeployError, match=r"other files \(notes.txt\)"):
        SECOND.save(tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").read_text() == "keep me"
    with pytest.raises(DeployError, match="found a file, wanted an empty directory"):
        FIRST.save(place / "notes.txt")


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/x"])
def test_names_stay_inside_the_directory(name: str) -> None:
    with pytest.raises(DeployError) as caught:
        Artifact({name: b"", "qfunc.json": b"{}"})
    want = f"Artifact.files: found {name!r}, wanted a plain file name. Return names without folders from the lowering."
    assert str(caught.value) == want


def test_an_artifact_has_a_report() -> None:
    with pytest.raises(DeployError, match=r"Artifact.files: found \['model.onnx'\], wanted a report\."):
        Artifact({"model.onnx": b""})


def test_a_saved_directory_is_readable_as_the_umask_says(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    assert FIRST.save(tmp_path / "out").stat().st_mode == plain.stat().st_mode
