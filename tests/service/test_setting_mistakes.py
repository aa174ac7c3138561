"""Names of variables that are no settings, and values that are invalid: each is refused by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.main import main
from service.setting_mistakes import unknown_variables
from service.settings import Settings

COMMANDS = {
    "serve": ["serve"],
    "keys": ["keys", "create"],
    "backup": ["backup", "somewhere"],
    "restore": ["restore", "somewhere"],
    "import": ["import", "model.onnx"],
    "profile": ["profile", "program.json"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_a_misspelled_setting_and_names_the_right_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BACKPASS_DATADIR", str(tmp_path / "data"))

    assert main(COMMANDS[command]) == 2

    assert capsys.readouterr().err == "BACKPASS_DATADIR is not a setting: did you mean BACKPASS_DATA_DIR?\n"
    assert list(tmp_path.iterdir()) == []


CHANGES = {
    "a letter is missing": lambda name: name[: len(name) // 2] + name[len(name) // 2 + 1 :],
    "a letter is doubled": lambda name: name[: len(name) // 2] + name[len(name) // 2] * 2 + name[len(name) // 2 + 1 :],
    "two letters are exchanged": lambda name: exchanged(name),
    "underscores are missing": lambda name: name.replace("_", ""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_right_name_of_every_setting_is_found(change, monkeypatch):
    names = [name.upper() for name in Settings.model_fields if len(name) > 3]
    pairs = {CHANGES[change](name): name for name in names if CHANGES[change](name) != name}
    for wrong in pairs:
        monkeypatch.setenv(f"BACKPASS_{wrong}", "1")

    assert len(pairs) > 50
    assert dict(unknown_variables()) == {f"BACKPASS_{wrong}": f"BACKPASS_{name}" for wrong, name in pairs.items()}


def exchanged(letters: str) -> str:
    """The name with two neighbours exchanged, the last pair of different ones."""
    at = next(i for i in reversed(range(len(letters) - 1)) if letters[i] != letters[i + 1])
    return letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :]


@pytest.mark.parametrize("name", ["API_KEY", "URL", "TEST_ANYTHING", "SERVICE_PORT", "METRICS_SERVICE_PORT_HTTP"])
def test_variables_that_others_read_are_no_mistakes(name, monkeypatch):
    monkeypatch.setenv(f"BACKPASS_{name}", "1")

    assert list(unknown_variables()) == []


def test_the_name_of_a_secret_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("backpass_databse_url", "backpass_tls_key", "api_keys"):
        (tmp_path / name).write_text("secret")
    monkeypatch.setitem(Settings.model_config, "secrets_dir", tmp_path)

    assert dict(unknown_variables()) == {str(tmp_path / "backpass_databse_url"): "BACKPASS_DATABASE_URL"}


WRONG = {
    "workers=two": "BACKPASS_WORKERS: must be an integer, found 'two'",
    "workers=0": "BACKPASS_WORKERS: must be greater than or equal to 1, found '0'",
    "device=gpu": "BACKPASS_DEVICE: must be 'cpu', 'cuda' or 'auto', found 'gpu'",
    "require_keys=maybe": "BACKPASS_REQUIRE_KEYS: must be true or false, found 'maybe'",
    "step_deadline=inf": "BACKPASS_STEP_DEADLINE: must be finite, found 'inf'",
    "step_deadline=nan": "BACKPASS_STEP_DEADLINE: must be finite, found 'nan'",
    "port=tcp://10.0.0.1:80": "BACKPASS_PORT: must be an integer, found 'tcp://10.0.0.1:80'; Kubernetes sets it for a "
    "service of that name: set enableServiceLinks to false in the pod",
}


@pytest.mark.parametrize("given", WRONG)
def test_an_invalid_value_is_shown_with_what_is_expected(given, monkeypatch, capsys):
    name, _, value = given.partition("=")
    monkeypatch.setenv(f"BACKPASS_{name.upper()}", value)

    assert main(["serve"]) == 2

    assert capsys.readouterr().err == f"{WRONG[given]}\n"


def test_an_empty_variable_is_not_set(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.setenv(f"BACKPASS_{name.upper()}", "")

    assert Settings().model_fields_set == set()
