"""Profiles over HTTP, and on the command line."""

from __future__ import annotations

import json

import pytest

from service.cli import main as cli
from service.schemas.examples import REGRESSION, REGRESSION_FEEDS, REGRESSION_ID, REGRESSION_PARAMETERS
from service.settings import Settings
from tests.programs import EXECUTOR

GIVEN = {"program": REGRESSION, "loss": "loss", "feeds": REGRESSION_FEEDS, "parameters": REGRESSION_PARAMETERS}
MEMBERS = {"kernel", "ops", "of", "compiled", "calls", "ms", "flops", "bytes", "share_of_time", "share_of_peak"}


def assert_is_profile(found, compiled):
    assert {"ms", "outside_ms", "peak", "peak_bytes", "kernels"} <= found.keys()
    assert found["peak_bytes"] > 0
    assert found["peak"]["threads"] >= 1
    assert found["kernels"]
    for each in found["kernels"]:
        assert each.keys() == MEMBERS
        assert each["calls"] == 1
        assert each["compiled"] is compiled


@pytest.mark.reference
def test_one_shot_gradients_return_a_profile_on_request(client):
    plain = client.post("/v1/gradients", json=GIVEN).json()
    answer = client.post("/v1/gradients?profile=true", json=GIVEN)

    assert answer.status_code == 200, answer.text
    assert "profile" not in plain
    assert answer.json()["gradients"] == plain["gradients"]
    assert_is_profile(answer.json()["profile"], compiled=False)  # the call is too short for compilation

    known = client.post(f"/v1/programs/{REGRESSION_ID}/gradients?profile=1", json={**GIVEN, "program": None})
    assert known.status_code == 422
    del (given := dict(GIVEN))["program"]
    known = client.post(f"/v1/programs/{REGRESSION_ID}/gradients?profile=1", json=given)
    assert_is_profile(known.json()["profile"], compiled=False)


def test_the_last_line_of_a_stream_holds_the_profile(client):
    answer = client.post("/v1/gradients?profile=true", json=GIVEN, headers={"accept": "application/x-ndjson"})
    done = json.loads(answer.text.splitlines()[-1])

    assert done["event"] == "done"
    assert_is_profile(done["profile"], compiled=False)


def test_a_profile_parameter_other_than_a_bool_is_refused(client):
    assert client.post("/v1/gradients?profile=perhaps", json=GIVEN).status_code == 422


@pytest.mark.reference
def test_machine_code_has_the_workers_share_of_the_cores(client):
    workers = len(client.get("/v1/workers").json()["workers"])
    share = Settings().threads_per_worker(workers)

    assert client.post("/v1/gradients?profile=true", json=GIVEN).json()["profile"]["peak"]["threads"] == share


def test_a_session_trains_the_same_with_and_without_a_profile(client):
    asked = {"program": REGRESSION, "loss": "loss", "init": {"parameters": REGRESSION_PARAMETERS}}
    losses = []
    for query in ("", "?profile=true"):
        at = f"/v1/sessions/{client.post('/v1/sessions', json=asked).json()['id']}"
        answers = [client.post(f"{at}/steps{query}", json={"feeds": REGRESSION_FEEDS}).json() for _ in range(3)]
        losses.append([each["loss"] for each in answers])
        assert all(("profile" in each) == bool(query) for each in answers)
        if query:
            assert_is_profile(answers[2]["profile"], compiled=True)
            assert any(each["of"] is None for each in answers[2]["profile"]["kernels"])  # the optimizer's
            gradients = client.post(f"{at}/gradients{query}", json={"feeds": REGRESSION_FEEDS}).json()
            assert_is_profile(gradients["profile"], compiled=True)
            evaluation = client.post(f"{at}/evaluations{query}", json={"feeds": REGRESSION_FEEDS}).json()
            assert_is_profile(evaluation["profile"], compiled=EXECUTOR["native"])
        client.delete(at)

    assert losses[0] == losses[1]


@pytest.fixture(autouse=True)
def _threads_of_the_command(monkeypatch):
    """The command sets the threads of its process, which are those of the next test, too."""
    monkeypatch.setenv("BACKPASS_THREADS", "")


def test_the_command_prints_a_table(tmp_path, capsys):
    (tmp_path / "request.json").write_text(json.dumps(GIVEN))

    assert (
        cli.main(["profile", str(tmp_path / "request.json"), "--steps", "2", "--optimizer", "adam", "--threads", "3"])
        == 0
    )

    table = capsys.readouterr().out
    assert "of peak" in table
    assert "matmul" in table
    assert "the mean of 2, on 3 threads" in table


def test_the_command_prints_json_and_accepts_a_bare_program(tmp_path, capsys):
    (tmp_path / "program.json").write_text(json.dumps(REGRESSION))
    asked = ["profile", str(tmp_path / "program.json"), "--json", "--steps", "3", "--interpret"]

    assert cli.main([*asked, "--shape", "x:5,2", "--shape", "y:5,1"]) == 0

    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 3
    assert all(each["calls"] == 3 and not each["compiled"] for each in found["kernels"])


@pytest.mark.parametrize(
    ("content", "more", "status", "said"),
    [
        (REGRESSION, [], 1, "with an open size: set it with --shape x:..."),
        (GIVEN, ["--loss", "unknown"], 1, "unknown"),
        ({"blocks": []}, [], 1, ""),
        (GIVEN, ["--shape", "x:a"], 2, "--shape: expected NAME:SIZES, such as x:32,64, got 'x:a'"),
        (GIVEN, ["--shape", "z:3"], 1, "the program has no feed 'z'"),
        (GIVEN, ["--optimizer", "foo"], 2, "--optimizer: unknown optimizer 'foo'; known are adadelta, adagrad, adam"),
        (GIVEN, ["--threads", "0"], 2, "BACKPASS_THREADS: must be greater than or equal to 1"),
        ([], [], 1, "expected a JSON object, found list"),
        ({**GIVEN, "feeds": {"x": 1}}, [], 1, "a tensor must be an object"),
    ],
    ids=["open size", "loss", "program", "shape", "feed", "optimizer", "threads", "list", "tensor"],
)
def test_the_command_reports_errors_without_a_traceback(tmp_path, capsys, content, more, status, said):
    (tmp_path / "file.json").write_text(json.dumps(content))

    assert cli.main(["profile", str(tmp_path / "file.json"), *more]) == status

    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize(("name", "said"), [("none.json", "No such file"), ("text.json", "not JSON: Expecting value")])
def test_an_error_names_an_unreadable_file_once(tmp_path, capsys, name, said):
    (tmp_path / "text.json").write_text("# not JSON")

    assert cli.main(["profile", str(tmp_path / name)]) == 1

    error = capsys.readouterr().err
    assert said in error
    assert error.count(name) == 1
