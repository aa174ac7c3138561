"""Settings from the environment, and the command line that shows and checks them."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from service import __version__, logs
from service.cli import main as cli
from service.settings import Settings


def test_every_setting_is_described_and_has_a_default():
    settings = Settings()

    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert hasattr(settings, name)


def test_environment_variables_set_values_and_invalid_ones_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BACKPASS_WORKERS", "3")
    monkeypatch.setenv("BACKPASS_DEVICE", "cpu")
    assert (Settings().workers, Settings().device) == (3, "cpu")

    monkeypatch.setenv("BACKPASS_DEVICE", "tpu")
    with pytest.raises(ValidationError):
        Settings()


def test_the_default_is_two_to_eight_workers(monkeypatch: pytest.MonkeyPatch):
    for cores, workers in ((1, 2), (4, 2), (6, 3), (64, 8)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))

        assert Settings().workers == workers
        assert Settings().threads_per_worker(workers) == max(1, cores // workers)


def test_a_tilde_is_the_home_directory_in_every_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ci")
    paths = [name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation)]
    for name in (*paths, "objects_url"):
        monkeypatch.setenv(f"BACKPASS_{name.upper()}", "~/here")

    settings = Settings()

    assert len(paths) == 5
    assert {str(getattr(settings, name)) for name in (*paths, "objects_url")} == {"/home/ci/here"}
    assert Settings(data_dir="~/there").data_dir == Path("/home/ci/there")
    assert Settings(objects_url="s3://bucket/~/x").objects_url == "s3://bucket/~/x"


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_an_error_names_the_invalid_setting_and_nothing_starts(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["serve", "--device", "tpu", "--port", "70000"]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["BACKPASS_PORT", "BACKPASS_DEVICE"]


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        cli.main(["fly"])

    assert caught.value.code == 2


def test_a_log_line_cannot_be_forged():
    formatter = logs.JsonFormatter({"worker": "wrk_1"})
    record = logging.LogRecord("backpass", logging.INFO, "", 0, 'a\r\nINFO forged "x"', (), None)

    line = formatter.format(record)

    assert "\n" not in line
    assert json.loads(line)["message"] == 'a\r\nINFO forged "x"'
    assert json.loads(line)["worker"] == "wrk_1"


def test_a_traceback_is_part_of_its_line():
    try:
        raise ValueError("boom")
    except ValueError:
        record = logging.LogRecord("backpass", logging.ERROR, "", 0, "failed", (), sys.exc_info())

    line = logs.JsonFormatter({}).format(record)

    assert "\n" not in line
    assert "ValueError: boom" in json.loads(line)["traceback"]


def test_the_service_does_not_start_with_workers_that_do_not_fit(monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("BACKPASS_WORKERS", "2")
    monkeypatch.setenv("BACKPASS_DEVICE", "cpu")
    monkeypatch.setenv("BACKPASS_WORKER_MEMORY", str(10**15))

    assert cli.main(["serve", "--port", "0"]) == 2

    assert capsys.readouterr().err.startswith("BACKPASS_WORKER_MEMORY: 2 workers of 953674316 MiB need")
