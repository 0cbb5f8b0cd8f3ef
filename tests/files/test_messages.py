"""What readers of files refuse, by whole messages: where, what was found, what was wanted, what to do."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import flatbuffers
import onnx
import pytest
import torch

import qfunc
from qfunc import specs, targets
from qfunc.errors import CalibrationError, DeployError, FileError, QfuncError, SpecError, VerifyError
from qfunc.files.fields import Count, JsonObject, Keyed, Many, Nullable, Number, Object, Sizes, Text, Word, require
from qfunc.files.folder import LARGEST, is_plain_name, read_folder
from qfunc.files.json_text import DEEPEST, LONGEST, parse
from qfunc.files.ncnn_param import read_param
from qfunc.files.onnx_model import read_model
from qfunc.files.tensors import read_tensors
from qfunc.graph.record import TensorInfo
from qfunc.lowering import report_fields
from qfunc.lowering.artifact import Artifact
from qfunc.lowering.flatbuffer import parse as parse_flatbuffer
from qfunc.proof.saved_check import check_saved
from qfunc.reconstruction.checkpoint import Checkpoint
from qfunc.targets.onnxruntime.runner import OnnxRuntimeRunner
from qfunc.targets.tosa.schema import GRAPH
from tests.files.formats import artifact, calibrated, network, saved_model

AGAIN = "Write the file again: it is damaged, or another program changed it."


def refused(read: Callable[[], Any], kind: type[QfuncError] = FileError) -> str:
    """The message."""
    with pytest.raises(kind) as e:
        read()
    return str(e.value)


TEXTS = [
    ("[" * 100_000, f"found JSON of depth 100,000, wanted at most {DEEPEST}"),
    ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), f"found JSON of depth {DEEPEST + 1}, wanted at most {DEEPEST}"),
    ('{"a": 1, "b": {"c": 1, "c": 2}}', "found the key 'c' twice, wanted each key once"),
    ("[NaN]", "found the number NaN, wanted finite numbers"),
    ("[-Infinity]", "found the number -Infinity, wanted finite numbers"),
    ("[1e999]", "found the number 1e999, wanted finite numbers"),
    (f"[{'9' * 5000}]", "found an integer of 5,000 digits, wanted at most 20"),
    ('["\\ud800"]', "found half of a surrogate pair, wanted Unicode text"),
    ("\ud800", "found no JSON (Expecting value: line 1 column 1 (char 0)), wanted JSON text"),
    ('["\ud800"]', "found half of a surrogate pair, wanted Unicode text"),
    (b'["\xff"]', "found bytes that are not UTF-8, at 2, wanted UTF-8 text"),
    ("", "found no JSON (Expecting value: line 1 column 1 (char 0)), wanted JSON text"),
]


@pytest.mark.parametrize(("text", "message"), TEXTS, ids=range(len(TEXTS)))
def test_texts_that_are_refused(text: str | bytes, message: str) -> None:
    assert refused(lambda: parse(text, "mine.json")) == f"mine.json: {message}. {AGAIN}"


def test_texts_that_are_read() -> None:
    for value in ({}, [], 0, "x", {"a": [1.5, None, True, "\U0001f600"]}, ["[[[[", '"\\', -(1 << 63), (1 << 64) - 1]):
        for ascii_ in (True, False):
            text = json.dumps(value, ensure_ascii=ascii_)
            assert parse(text, "x") == parse(text.encode(), "x") == value
    assert parse("[" * DEEPEST + "]" * DEEPEST, "x") != []
    assert parse('"' + "[" * 1000 + '"', "x") == "[" * 1000


def test_a_text_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qfunc.files.json_text.LONGEST", 10)
    assert refused(lambda: parse("[1, 2, 3, 4]", "mine.json")) == f"mine.json: found 12 bytes, wanted at most 10. {AGAIN}"
    assert LONGEST == 1 << 28


VALUES = [
    (Count(), True, "found true, wanted an integer >= 0"),
    (Count(), 1.0, "found 1.0, wanted an integer >= 0"),
    (Count(1, 4), 5, "found 5, wanted an integer >= 1 and <= 4"),
    (Number(), 1e39, "found 1e+39, wanted a number of float32"),
    (Text(3), "four", "found 'four', wanted a text of at most 3"),
    (Word(("a", "b")), ["a"], "found a list of 1, wanted one of a, b"),
    (Nullable(Count()), "x", "found 'x', wanted an integer >= 0 or null"),
    (Object(), None, "found null, wanted an object"),
    (Many(Count(), most=2), [1, 2, 3], "found a list of 3, wanted a list of at most 2"),
    (Many(Count(), least=1), [], "found a list of 0, wanted a list of at least 1"),
    (Keyed(Count()), [], "found a list of 0, wanted an object"),
    (Sizes(), [1 << 20, 1 << 21], "found a list of 2, wanted a shape of at most 1,099,511,627,776 elements"),
    (JsonObject({"a": Count()}), {}, "a: found no such field, wanted the fields a"),
    (JsonObject({"a": Count()}), {"a": 1, "b": 2}, "found an unknown field 'b', wanted the fields a"),
    (JsonObject({"a": Many(Keyed(Count()))}), {"a": [{}, {"k": -1}]}, "a[1]['k']: found -1, wanted an integer >= 0"),
    (JsonObject({}, {"a": Sizes()}), {"a": [2, "x" * 99]}, f"a[1]: found '{'x' * 56}..., wanted an integer >= 0"),
]


@pytest.mark.parametrize(("kind", "value", "message"), VALUES, ids=range(len(VALUES)))
def test_values_that_are_not_as_declared(kind: Any, value: Any, message: str) -> None:
    assert refused(lambda: require(kind, value, "mine.json")) == f"mine.json: {message}. {AGAIN}"


def test_the_fields_are_those_that_are_written() -> None:
    report = artifact("onnxruntime").report
    (tensor, *_), (unit, *_) = report["tensors"], report["units"]
    assert {*report_fields.INPUT.fields, *report_fields.INPUT.optional} == {f.name for f in attrs.fields(TensorInfo)}
    assert report_fields.TENSOR.fields.keys() == tensor.keys()
    assert report_fields.UNIT.fields.keys() == unit.keys()
    assert {*report_fields.ARTIFACT.fields, *report_fields.ARTIFACT.optional} == report.keys()


def changed(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the value of a JSON file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


REPORTS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda r: r["units"][1].update(integer="x"), "units[1].integer: found 'x', wanted true or false"),
    (lambda r: r["inputs"][0]["shape"].append(-1), "inputs[0].shape[4]: found -1, wanted an integer >= 0"),
    (lambda r: r["tensors"][0].update(scale=[]), "tensors[0].scale: found a list of 0, wanted a list of at least 1 or null"),
    (
        lambda r: r["tensors"][0].update(scale=[1.0] * 3),
        "tensors[0].zero_point: found a list of 1, wanted a list of 3, as its scale",
    ),
    (lambda r: r.update(target=[]), "target: found a list of 0, wanted an object"),
    (
        lambda r: r.update(note=1),
        "found an unknown field 'note', wanted the fields target, inputs, versions, tensors, units, files",
    ),
]


@pytest.mark.parametrize(("change", "message"), REPORTS, ids=range(len(REPORTS)))
def test_reports_of_artifacts(change: Callable[[Any], Any], message: str, tmp_path: Path) -> None:
    place = artifact("onnxruntime").save(tmp_path / "artifact")
    changed(place / "qfunc.json", change)
    assert refused(lambda: check_saved(place)) == f"{place}/qfunc.json: {message}. {AGAIN}"


def test_a_target_names_its_file_and_field(tmp_path: Path) -> None:
    place = saved_model(tmp_path / "model")
    changed(place / "qfunc.json", lambda r: r["target"]["spec"].update(name=""))
    assert refused(lambda: qfunc.load(place)(network()), SpecError) == (
        f"{place}/qfunc.json: target, Target.name: found '', wanted a non-empty str. Give a text."
    )
    changed(place / "qfunc.json", lambda r: r.update(target=json.loads(specs.to_json(specs.Int(8)))))
    assert refused(lambda: qfunc.load(place)(network())) == (
        f"{place}/qfunc.json: target: found the spec Int(8), wanted a Target. {AGAIN}"
    )
    do = "Give what to_json wrote."
    assert refused(lambda: specs.from_json('{"schema": 1, "spec": 5}'), SpecError) == (
        f"from_json, spec: found 5, wanted a spec. {do}"
    )
    text = specs.to_json(targets.qdq).replace('"schema": 1', '"schema": 1, "schema": 1')
    assert refused(lambda: specs.from_json(text), SpecError) == (
        f"from_json: found the key 'schema' twice, wanted each key once. {do}"
    )


HEADERS = [
    ({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 40], "data_offsets": [0, 4]}},
     "['a'].data_offsets: found bytes 0 to 4, wanted 0 to 4,835,703,278,458,516,698,824,704, as its dtype and shape need"),
    ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
     "['a'].data_offsets: found bytes to 8, wanted at most 4, as the file holds"),
    ({"a": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]}},
     "['a'].dtype: found 'F33', wanted one of BOOL, U8, I8, F8_E4M3, F8_E5M2, U16, I16, F16, BF16, U32, I32, F32, U64, I64, "
     "F64"),
    ({"__metadata__": {"a": 1}}, "__metadata__['a']: found 1, wanted a text of at most 100,000"),
    ({}, "found 4 bytes of tensors, wanted 0, as in the header"),
    ([], "found a list of 0, wanted an object"),
]  # fmt: skip


@pytest.mark.parametrize(("header", "message"), HEADERS, ids=range(len(HEADERS)))
def test_headers_of_tensors(header: Any, message: str, tmp_path: Path) -> None:
    text, path = json.dumps(header).encode(), tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    assert refused(lambda: read_tensors(path)) == f"{path}: {message}. {AGAIN}"


@pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")
def test_links_pipes_and_giants(tmp_path: Path) -> None:
    place, outside = saved_model(tmp_path / "model"), tmp_path / "outside"
    tensors = place / "model.safetensors"
    outside.write_bytes(tensors.read_bytes())
    tensors.unlink()
    tensors.symlink_to(outside)
    link = f"{tensors}: found a link to {str(outside)!r}, wanted a file. Copy the file itself to that place."
    assert refused(lambda: qfunc.load(place)(network())) == link
    assert refused(lambda: read_folder(place)) == link
    tensors.unlink()
    os.mkfifo(tensors)
    assert refused(lambda: read_tensors(tensors)) == (
        f"{tensors}: found a device or pipe, wanted a file. Copy the file itself to that place."
    )
    tensors.unlink()
    with tensors.open("wb") as file:
        file.truncate(LARGEST + 1)
    found = refused(lambda: read_tensors(tensors))
    assert found == f"{tensors}: found 17,179,869,185 bytes, wanted at most 17,179,869,184. {AGAIN}"


@pytest.mark.parametrize("name", ["../model.onnx", "/etc/passwd", "a/b", "a\\b", "c:b", "..", "a\0b", "a\n", "x" * 300, 5])
def test_names_of_other_places(name: Any) -> None:
    assert not is_plain_name(name)
    assert refused(lambda: Artifact({name: b"", "qfunc.json": b"{}"}), DeployError) == (
        f"Artifact.files: found {name!r}, wanted a plain file name. Return names without folders from the lowering."
    )


@pytest.mark.parametrize("place", ["../outside", "/etc/passwd", "weights.bin"])
def test_tensors_in_other_files(place: str) -> None:
    files = artifact("onnxruntime").files
    model = onnx.load_from_string(files["model.onnx"])
    tensor = model.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    message = (
        f"model.onnx: graph.initializer[1]: found a tensor in another file, {place!r}, wanted its values. "
        "Save the model with its tensors inside: onnx.save(model, path, save_as_external_data=False)."
    )
    changed_ = Artifact({**files, "model.onnx": model.SerializeToString()})
    assert refused(lambda: OnnxRuntimeRunner().run(changed_, [torch.zeros(2, 3, 4, 4)])) == message
    assert refused(lambda: OnnxRuntimeRunner().inside(changed_)) == message


def test_onnx_tensors_of_giant_shapes() -> None:
    model = onnx.load_from_string(artifact("onnxruntime").files["model.onnx"])
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend([1 << 62, 1 << 62])
    count = len(model.graph.initializer[0].raw_data) or 1
    assert refused(lambda: read_model(model.SerializeToString())) == (
        "model.onnx: graph.initializer[0].dims: found [4611686018427387904, 4611686018427387904], "
        f"wanted a shape of its {count} values or bytes. {AGAIN}"
    )


def test_flatbuffers_that_would_unfold() -> None:
    """A list of 2^28 offsets, and 1,000 offsets of one table with 1,000 offsets of one table."""
    long = struct.pack("<I4Hi2I", 12, 8, 8, 0, 4, 8, 4, 1 << 28)
    assert refused(lambda: parse_flatbuffer(GRAPH, "TosaGraph", long)) == (
        f"flatbuffer: found content of more than {len(long)} bytes, wanted as much as the file holds. {AGAIN}"
    )
    builder = flatbuffers.Builder(0)
    builder.StartObject(6)
    inner = builder.EndObject()
    for slot in (1, 1):
        builder.StartVector(4, 1000, 4)
        for _ in range(1000):
            builder.PrependUOffsetTRelative(inner)
        many = builder.EndVector()
        builder.StartObject(2)
        builder.PrependUOffsetTRelativeSlot(slot, many, 0)
        inner = builder.EndObject()
    builder.Finish(inner)
    assert refused(lambda: parse_flatbuffer(GRAPH, "TosaGraph", bytes(builder.Output()))).startswith(
        "flatbuffer: found content"
    )
    cut = artifact("tosa").files["model.tosa"][:40]
    assert refused(lambda: parse_flatbuffer(GRAPH, "TosaGraph", cut)).endswith(f"wanted offsets inside the data. {AGAIN}")


PARAMS = [
    (b"\xff", "found bytes that are not UTF-8, wanted UTF-8 text"),
    (b"7767518\n", "line 1: found '7767518', wanted 7767517"),
    (b"7767517\n2 1\nInput a 0 1 a\n", "line 2: found '2 1', wanted '1 1', as there are layers and blobs"),
    (b"7767517\n1 1\nInput a 0 99 a\n", "line 3: found 'Input a 0 99 a', wanted a kind, a name, two counts and as many blobs"),
    (b"7767517\n1 1\nNoop a 1 1 b a\n", "line 3: found the input 'b', wanted a blob that a layer before makes"),
    (b"7767517\n1 1\nInput a 0 1 a -23301=9,1\n",
     "line 3: found the parameter '-23301=9,1', wanted NUMBER=VALUE, each number once"),
    (b"7767517\n2 2\nInput a 0 1 a\nInput b 0 1 a\n", "found two blobs of one name, wanted each name once"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "message"), PARAMS, ids=range(len(PARAMS)))
def test_layers_of_ncnn(content: bytes, message: str) -> None:
    assert refused(lambda: read_param(content, "model.ncnn.param")) == f"model.ncnn.param: {message}. {AGAIN}"


def test_places_that_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / ("x" * 5000), tmp_path / "a\0b"):
        assert refused(lambda place=place: check_saved(place), VerifyError).startswith(f"verify({str(place)!r}): found no such")
        assert "found no saved model, wanted" in refused(lambda place=place: qfunc.load(place)(network()), CalibrationError)
    assert refused(lambda: Checkpoint(tmp_path / "file", {}), CalibrationError) == (
        f"reconstruct, resume={str(tmp_path / 'file')!r}: found file exists, wanted a directory that can be written. "
        "Use another directory."
    )


def test_a_state_dict_with_other_metadata() -> None:
    model = calibrated(targets.qdq)
    state = model.state_dict()
    state._metadata[""]["qfunc"] = [1]
    model.load_state_dict(state)


def test_a_runner_names_the_file_that_is_not_there() -> None:
    empty = Artifact({"qfunc.json": b"{}"})
    assert refused(lambda: OnnxRuntimeRunner().run(empty, [])) == (
        "model.onnx: found no such file among qfunc.json, wanted one. Deploy the model for the target of this runner."
    )
