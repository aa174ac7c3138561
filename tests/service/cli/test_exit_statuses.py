"""One law of exit statuses for all commands: 2 if and only if the message begins with the name of a setting or an
option, else 1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.cli.main import _parser, main
from tests.paths import ROOT

NAME = re.compile(r"BACKPASS_[A-Z_]+\b|--[a-z-]+\b|usage: ")
MODEL = str(ROOT / "service/static/linear.onnx")
PROGRAM = str(ROOT / "examples/programs/digits_mlp.json")
NOWHERE = "http://127.0.0.1:9"

# arguments, environment, exit status
CASES: dict[str, tuple[list[str], dict[str, str], int]] = {
    "no command": ([], {}, 2),
    "unknown command": (["nonsense"], {}, 2),
    "port": (["serve", "--port", "x"], {}, 2),
    "port of the environment": (["serve"], {"PORT": "-1"}, 2),
    "port of others": (["serve", "--port", "0"], {"METRICS_HOST": "192.0.2.1", "METRICS_PORT": "9"}, 2),
    "misspelled": (["serve"], {"WORKER": "1"}, 2),
    "deadlines": (["serve"], {"STEP_DEADLINE": "99999"}, 2),
    "objects": (["serve", "--port", "0", "--device", "cpu"], {"OBJECTS_URL": "zz://x"}, 2),
    "objects that cannot be written": (["serve", "--port", "0", "--device", "cpu"], {"OBJECTS_URL": "/proc/x"}, 2),
    "keys of a file": (["serve", "--port", "0", "--device", "cpu"], {"API_KEYS_FILE": "/no/such"}, 2),
    "certificate": (["serve", "--port", "0", "--device", "cpu"], {"TLS_CERT": "/no/such", "TLS_KEY": "/no/such"}, 2),
    "half a certificate": (["serve", "--port", "0", "--device", "cpu"], {"TLS_CERT": "/no/such"}, 2),
    "open to others": (["serve", "--port", "0", "--device", "cpu", "--host", "0.0.0.0"], {}, 1),
    "directory": (["serve", "--port", "0", "--device", "cpu", "--data-dir", "/proc/x"], {}, 1),
    "database": (["serve", "--port", "0", "--device", "cpu"], {"DATABASE_URL": "mysql://x"}, 2),
    "silent database": (["serve", "--port", "0", "--device", "cpu"], {"DATABASE_URL": "postgresql://127.0.0.1:1/x"}, 1),
    "no action": (["keys"], {}, 2),
    "scope": (["keys", "create", "--scopes", "all"], {}, 2),
    "tenant": (["keys", "create", "--tenant", "A b"], {}, 2),
    "line": (["keys", "create", "--line", "--expires", "1d"], {}, 2),
    "limit": (["keys", "tenants", "set", "acme", "job=3"], {}, 2),
    "key": (["keys", "revoke", "key_x"], {}, 1),
    "backup without a store": (["backup", "to"], {}, 1),
    "no backup": (["restore", "from"], {}, 1),
    "no model": (["import", "none.onnx"], {}, 1),
    "axis without a loss": (["import", MODEL, "--axis", "1"], {}, 2),
    "no such output": (["import", MODEL, "--dry-run", "--loss", "none"], {}, 2),
    "no such initializer": (["import", MODEL, "--dry-run", "--trainable", "none"], {}, 2),
    "no address": (["import", MODEL, "--url", "file:///etc"], {}, 2),
    "no address in the environment": (["import", MODEL], {"URL": "file:///etc"}, 2),
    "no such key": (["import", MODEL, "--url", NOWHERE], {"API_KEY": "a b"}, 2),
    "no service": (["import", MODEL, "--url", NOWHERE], {}, 1),
    "no program": (["profile", "none.json"], {}, 1),
    "open size": (["profile", PROGRAM], {}, 1),
    "shape": (["profile", PROGRAM, "--shape", "x"], {}, 2),
    "feed": (["profile", PROGRAM, "--shape", "zz:3"], {}, 1),
    "optimizer": (["profile", PROGRAM, "--optimizer", "foo"], {}, 2),
    "steps": (["profile", PROGRAM, "--steps", "0"], {}, 2),
    "threads": (["profile", PROGRAM, "--threads", "0"], {}, 2),
    "openapi": (["openapi", "--output", "/proc/none"], {}, 2),
    "catalogue": (["catalogue", "--output", "/proc/none"], {}, 2),
    "options": (["options", "--output", "/proc/none"], {}, 2),
    "signatures": (["signatures", "--output", "/proc/none"], {}, 2),
    "doctor": (["doctor", "--port", "x"], {}, 2),
    "doctor finds it": (["doctor", "--device", "tpu", "--port", "0"], {}, 1),
    "version": (["version", "--long"], {}, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_status_says_whether_a_setting_or_an_option_is_wrong(name: str, tmp_path: Path, monkeypatch, capsys):
    arguments, environment, expected = CASES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKPASS_THREADS", "")  # as before, after `profile` has set it
    for variable, value in environment.items():
        monkeypatch.setenv(f"BACKPASS_{variable}", value)
    monkeypatch.setattr("service.engine.EmbeddedPool.begin", lambda pool: None)
    monkeypatch.setattr("service.logs.configure", lambda *_, **__: None)

    try:
        status = main(arguments)
    except SystemExit as ended:  # of argparse
        status = ended.code

    said = capsys.readouterr().err
    assert status == expected, said
    assert (status == 2) == (NAME.match(said) is not None), said
    assert "Traceback" not in said


def test_the_law_holds_for_every_command():
    (commands,) = [action.choices for action in _parser()._actions if isinstance(action.choices, dict)]

    assert {arguments[0] for arguments, *_ in CASES.values() if arguments} >= set(commands)
