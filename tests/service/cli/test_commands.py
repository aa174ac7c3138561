"""Mistakes in the use of commands: one line on standard error, no traceback, no secret."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service import __version__
from service.cli.main import main
from service.tenants.key_file import read_keys
from tests.paths import ROOT


@pytest.mark.parametrize("command", ["openapi", "catalogue", "options", "signatures"])
def test_a_place_that_cannot_be_written_is_named(command, capsys):
    assert main([command, "--output", "/proc/none"]) == 2

    assert capsys.readouterr().err == "--output /proc/none: No such file or directory\n"


def test_the_version_is_an_option_too(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert (caught.value.code, capsys.readouterr().out) == (0, f"{__version__}\n")


@pytest.mark.parametrize("key", ["bp_hid\nden", "bp_hid den", "bp_hidd\u00e4n"])
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key, monkeypatch, capsys):
    monkeypatch.setenv("BACKPASS_API_KEY", key)

    assert main(["import", str(ROOT / "service/static/linear.onnx")]) == 2

    found = capsys.readouterr()
    assert "BACKPASS_API_KEY has a character that no key has" in found.err
    assert "bp_hid" not in found.out + found.err


def test_a_new_key_comes_with_the_place_that_knows_it(tmp_path: Path, capsys):
    assert main(["keys", "create", "--data-dir", str(tmp_path / "data")]) == 0

    found = capsys.readouterr()
    assert found.out.count("\n") == 1
    assert f"Services that store in {tmp_path / 'data'} know it." in found.err


def test_a_file_of_keys_may_begin_with_a_byte_order_mark(tmp_path: Path):
    (tmp_path / "keys").write_text(f"# of an editor\nacme:read:bp_{'a' * 52}\n", encoding="utf-8-sig")

    assert [key.tenant for key in read_keys(tmp_path / "keys")] == ["acme"]


@pytest.mark.parametrize("arguments", [["serve"], ["backup", "somewhere"], ["doctor"], ["openapi"]])
def test_control_c_ends_a_command_without_a_traceback(arguments, monkeypatch, capsys):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    for place in ("service.cli.main.read_settings", "service.cli.main.documents.run", "service.doctor.examine"):
        monkeypatch.setattr(place, interrupt)

    assert main(arguments) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["version"], ["keys", "list"]])
@pytest.mark.parametrize("reader", ["full", "closed"])
def test_an_output_that_cannot_be_written_ends_a_command_without_a_traceback(command, reader, tmp_path):
    if reader == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, output = os.pipe()
        os.close(reading)
    ran = [sys.executable, "-m", "service", *command]
    environment = {**os.environ, "BACKPASS_DATA_DIR": str(tmp_path / "data")}
    ended = subprocess.run(ran, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.PIPE, text=True)
    os.close(output)

    if reader == "full":
        assert ended.returncode == 1
        assert ended.stderr == "backpass: standard output cannot be written: No space left on device\n"
    else:
        assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")
