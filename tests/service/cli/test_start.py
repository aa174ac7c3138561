"""The start of `backpass serve`: refusals in one sentence, warnings, and the data directory."""

from __future__ import annotations

import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service.doctor import examine
from tests.paths import ROOT
from tests.service.conftest import COMMAND, serve


def ended(**settings: object) -> subprocess.CompletedProcess[str]:
    """`backpass serve` with settings that it refuses."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment |= {f"BACKPASS_{name.upper()}": str(value) for name, value in {"port": 0, **settings}.items()}
    command = [sys.executable, "-m", "service", "serve"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=180, text=True)


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_a_start_without_the_gpu_that_the_settings_ask_for_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = ended(data_dir=tmp_path / "data", device="cuda")

    assert found.returncode == 2
    assert found.stderr == "BACKPASS_DEVICE is cuda, but no GPU is visible here\n"
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is installed")
def test_a_start_without_the_package_of_the_object_store_is_refused_with_the_cure(tmp_path: Path) -> None:
    found = ended(data_dir=tmp_path / "data", device="cpu", objects_url="s3://x/y")

    assert found.returncode == 2
    text = "BACKPASS_OBJECTS_URL: a store of s3:// needs a package that is not installed: pip install 'backpass[s3]'\n"
    assert found.stderr == text


def test_a_start_with_an_unknown_kind_of_object_store_is_refused_in_one_sentence(tmp_path: Path) -> None:
    found = ended(data_dir=tmp_path / "data", device="cpu", objects_url="zz://x/y")

    assert found.returncode == 2
    assert found.stderr.startswith("BACKPASS_OBJECTS_URL: ")
    assert found.stderr.count("\n") == 1


def test_a_start_warns_of_unknown_settings_and_names_its_directory_which_is_private(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as stderr,
        serve(tmp_path / "data", stderr=stderr, command=COMMAND, foo=1, log_level="info") as served,
    ):
        mode = stat.S_IMODE(served.data_dir.stat().st_mode)
    messages = [json.loads(line)["message"] for line in log.read_text().splitlines()]

    assert mode == 0o700
    assert "BACKPASS_FOO is not a setting, so it has no effect" in messages
    assert any(f"stored data are in {tmp_path / 'data'};" in each for each in messages)


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "a name without an address": (
        {"host": "no-such-host.invalid"},
        "BACKPASS_HOST: cannot listen on no-such-host.invalid:0: ",
    ),
    "an address of another machine": ({"host": "192.0.2.1"}, "BACKPASS_HOST: cannot listen on 192.0.2.1:0: "),
    "an address of another machine for metrics": (
        {"metrics_host": "192.0.2.1", "metrics_port": 9},
        "BACKPASS_METRICS_HOST: cannot listen on 192.0.2.1:9: ",
    ),
    "one port for two things": ({"port": 49151, "metrics_port": 49151}, "BACKPASS_METRICS_PORT: 49151 is the port of"),
    "objects in no directory": ({"objects_url": "/dev/null"}, "BACKPASS_OBJECTS_URL: /dev/null is not a directory"),
    "objects where nothing can be made": ({"objects_url": "/proc/x"}, "BACKPASS_OBJECTS_URL: /proc/x cannot be made: "),
    "no file of keys": ({"api_keys_file": "/no/such"}, "BACKPASS_API_KEYS_FILE: /no/such cannot be read: "),
    "no certificate": (
        {"tls_cert": "/no/such", "tls_key": "/no/such"},
        "BACKPASS_TLS_CERT: /no/such cannot be read: ",
    ),
    "an address that others reach": ({"host": "0.0.0.0"}, "backpass: no API key exists, so the service does not"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_a_start_is_refused_in_one_sentence_and_doctor_knows_the_reason(name: str, tmp_path: Path) -> None:
    given, text = REFUSED[name]
    settings = {"device": "cpu", "workers": 1, "data_dir": tmp_path / "data", "host": "127.0.0.1"} | given

    found = ended(**settings)

    assert found.returncode == (2 if text.startswith("BACKPASS_") else 1)
    assert found.stderr.startswith(text)
    assert found.stderr.count("\n") == 1
    assert [each for each in examine(**{"port": 0, **settings}) if each.state == "wrong"]
