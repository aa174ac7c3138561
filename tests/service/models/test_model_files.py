"""Models with external data and in zip files, and what their authors may try."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import onnx
import pytest
from onnx import helper

from core.ir.errors import ProgramError
from core.onnx import read_model
from service.models.model_files import BadModelFile, read_model_file
from tests.service.models.build import external, linear

LIMIT = 10_000


def written(folder: Path, location: str = "linear.data", data: str | None = "linear.data") -> Path:
    """A model whose tensors name `location`, and a file `data` with their content."""
    model, content = external(location)
    if data is not None:
        (folder / data).parent.mkdir(parents=True, exist_ok=True)
        (folder / data).write_bytes(content)
    path = folder / "linear.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def zipped(path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def is_linear(content: bytes) -> bool:
    found = onnx.load_from_string(content)
    return [onnx.numpy_helper.to_array(t).tolist() for t in found.graph.initializer] == [
        onnx.numpy_helper.to_array(t).tolist() for t in linear().graph.initializer
    ]


@pytest.mark.parametrize("location", ["linear.data", "weights/of/linear.data", "./linear.data"])
def test_external_data_is_read_from_the_folder_of_the_model(tmp_path, location):
    content = read_model_file(written(tmp_path, location, location), LIMIT)

    assert is_linear(content)
    assert read_model(content).values["0.bias"].tolist() == [0.125]


@pytest.mark.parametrize("prefix", ["", "model/"])
def test_a_zip_file_has_the_model_and_its_data(tmp_path, prefix):
    model, data = external("parts/linear.data")
    members = ((f"{prefix}linear.onnx", model.SerializeToString()), (f"{prefix}parts/linear.data", data))

    assert is_linear(read_model_file(zipped(tmp_path / "linear.zip", *members), LIMIT))
    assert is_linear(read_model_file(zipped(tmp_path / "linear.bin", *members), LIMIT, is_zip=True))


@pytest.mark.parametrize(
    "location",
    ["../secret", "/etc/passwd", "a/../../secret", "..", ".", "", "..\\secret", "C:\\secret", "linear.data\0", "a/.."],
)
def test_a_location_outside_of_the_folder_is_refused(tmp_path, location):
    (tmp_path / "secret").write_bytes(external()[1])
    path = written(tmp_path / "model", location)
    archive = zipped(tmp_path / "a.zip", ("linear.onnx", path.read_bytes()), ("linear.data", external()[1]))

    for each in (path, archive):
        with pytest.raises((BadModelFile, ProgramError), match=r"is not that of a file inside|which was not given"):
            read_model_file(each, LIMIT)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(external()[1])
    path = written(tmp_path / "model", data=None)
    os.symlink(tmp_path / "secret", path.parent / "linear.data")

    with pytest.raises(BadModelFile, match="is a link out of the folder"):
        read_model_file(path, LIMIT)


def test_missing_data_is_named(tmp_path):
    with pytest.raises(ProgramError, match=r"'linear.data', which was not given"):
        read_model_file(written(tmp_path, data=None), LIMIT)


def link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


MODEL = linear().SerializeToString()


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("../linear.onnx", MODEL)], "is not that of a file inside"),
        ([("/linear.onnx", MODEL)], "is not that of a file inside"),
        ([("linear.onnx", MODEL), ("../../etc/cron", b"")], "is not that of a file inside"),
        ([("linear.onnx", MODEL), (link("linear.data"), b"/etc/passwd")], "is a link"),
        ([("linear.onnx", MODEL), ("linear.onnx", MODEL)], "twice"),
        ([("a.onnx", MODEL), ("b.onnx", MODEL)], "has 2 files"),
        ([("readme", b"")], "has 0 files"),
        ([("linear.onnx", bytes(LIMIT + 1))], "more than 10000 bytes"),
        ([("linear.onnx", MODEL + bytes(9_000)), ("linear.data", b"")], "not an ONNX model"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_bad_zip_file_is_refused(tmp_path, members, words):
    with pytest.raises((BadModelFile, ProgramError), match=words):
        read_model_file(zipped(tmp_path / "a.zip", *members), LIMIT)


def test_a_bomb_ends_at_the_limit_whatever_size_it_announces(tmp_path):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("linear.onnx", bytes(2**26))
    content = bytearray(bomb.getvalue())
    assert len(content) < 2**17
    path = tmp_path / "bomb.zip"
    path.write_bytes(content)
    with pytest.raises(BadModelFile, match="more than 10000 bytes"):
        read_model_file(path, LIMIT)

    place = content.index(b"PK\x01\x02") + 24
    content[place : place + 4] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises((BadModelFile, ProgramError)):
        read_model_file(path, LIMIT)


def test_many_tensors_of_one_file_read_it_once(tmp_path):
    path = written(tmp_path)
    size = path.stat().st_size + (tmp_path / "linear.data").stat().st_size

    assert is_linear(read_model_file(path, size))
    with pytest.raises(BadModelFile, match="more than"):
        read_model_file(path, size - 1)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"PK\x05\x06" + bytes(18), bytes(100)])
def test_damaged_zip_files_are_refused(tmp_path, content):
    (tmp_path / "a.zip").write_bytes(content)

    with pytest.raises(BadModelFile):
        read_model_file(tmp_path / "a.zip", LIMIT)


def test_data_inside_of_subgraphs_and_attributes_is_embedded(tmp_path):
    model, data = external()
    constant = helper.make_node("Constant", [], ["c"], "constant", value=model.graph.initializer[1])
    model.graph.node.insert(0, constant)
    (tmp_path / "linear.data").write_bytes(data)
    (tmp_path / "linear.onnx").write_bytes(model.SerializeToString())

    assert b"location" not in read_model_file(tmp_path / "linear.onnx", LIMIT)


def test_tensors_that_share_bytes_of_a_file_end_at_the_limit(tmp_path):
    model, data = external()
    first = model.graph.initializer[0]
    for n in range(300):
        model.graph.initializer.add().CopyFrom(first)
        model.graph.initializer[-1].name = f"copy{n}"
        for entry in model.graph.initializer[-1].external_data:
            if entry.key in ("offset", "length"):
                entry.value = str({"offset": 0, "length": 1000}[entry.key])
    (tmp_path / "linear.data").write_bytes(data + bytes(1000))
    (tmp_path / "linear.onnx").write_bytes(model.SerializeToString())

    with pytest.raises(ProgramError, match="more than 100000 bytes"):
        read_model_file(tmp_path / "linear.onnx", 100_000)
