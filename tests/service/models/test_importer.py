"""The process that reads models: its end, its limits, and the defects of converters."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnx
import pytest

from core.ir.errors import ProgramError
from service.models import Importer, Read, handlers, importer
from service.objects.tensor_file import mapped
from service.problems import HttpProblem
from service.settings import Settings
from tests.service.models.build import W, linear


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Reads the contents of files in turn, each with the result or the refusal."""
    monkeypatch.setattr(importer, "HANDLERS", "tests.service.models.misbehaving:HANDLERS")
    monkeypatch.setattr(importer, "MEMORY_BYTES", 2**29)

    def read(*contents: bytes, deadline: float = 60.0, ends_once: bool = False) -> list[Read | HttpProblem]:
        settings = Settings(data_dir=tmp_path, import_deadline=deadline)
        return asyncio.run(all_of(Importer(settings), contents, ends_once))

    async def all_of(reader: Importer, contents: tuple[bytes, ...], ends_once: bool) -> list[Read | HttpProblem]:
        found: list[Read | HttpProblem] = []
        try:
            for n, content in enumerate(contents):
                (folder := tmp_path / str(n)).mkdir()
                (folder / "model").write_bytes(content)
                if ends_once:
                    (folder / "ends once").touch()
                try:
                    found.append(await reader.onnx(folder / "model", {"kind": "mse"}, None, folder))
                except HttpProblem as problem:
                    found.append(problem)
        finally:
            await reader.stop()
        return found

    return read


def test_a_model_that_ends_its_process_is_refused_and_the_next_one_is_read(reader):
    strange = linear()
    strange.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.float32([[np.nan], [np.inf]]), "0.weight"))

    memory, defect, crash, good, infinite = reader(
        b"memory", b"defect", b"crash", linear().SerializeToString(), strange.SerializeToString()
    )

    assert (memory.code, memory.extensions["reason"]) == ("limit-exceeded", "out-of-memory")
    assert defect.code == "internal", "a defect of the handler is not a mistake of the client"
    assert (crash.code, crash.extensions["reason"]) == ("limit-exceeded", "conversion-ended")
    assert mapped(good.values.file)[0]["0.weight"].tolist() == W.tolist()
    assert good.about == {"inputs": ["x", "label"], "outputs": ["y"], "loss": "loss"}
    np.testing.assert_array_equal(mapped(infinite.values.file)[0]["0.weight"], [[np.nan], [np.inf]])


def test_a_model_is_read_though_something_else_ends_the_first_process(reader):
    (found,) = reader(linear().SerializeToString(), ends_once=True)

    assert mapped(found.values.file)[0]["0.weight"].tolist() == W.tolist()


@pytest.mark.slow
def test_a_model_that_takes_too_long_is_refused(reader):
    (found,) = reader(b"hang", deadline=15.0)

    assert (found.code, found.status) == ("limit-exceeded", 422)
    assert found.extensions["reason"] == "conversion-deadline"


def test_a_defect_of_a_converter_is_logged_and_refused_without_its_text(monkeypatch, caplog):
    def defective(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(handlers, "read_model", defective)
    with pytest.raises(ProgramError, match="RuntimeError") as found:
        handlers._model(b"", None, None)

    assert (found.value.code, "secret" in found.value.message) == ("unreadable_model", False)
    assert "secret" in caplog.text


def test_the_folder_of_a_request_goes_with_it(tmp_path):
    reader = Importer(Settings(data_dir=tmp_path))

    async def run() -> Path:
        async with reader.folder() as folder:
            (folder / "model.onnx").write_bytes(b"model")
            assert folder.is_relative_to(tmp_path)
        return folder

    assert not asyncio.run(run()).exists()
