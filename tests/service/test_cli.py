"""The command line as an operator sees it."""

from __future__ import annotations

import signal

import pytest

from tests.service.conftest import serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_in_good_order_is_no_failure(tmp_path, number):
    with serve(tmp_path, workers=1) as served:
        served.process.send_signal(number)

        assert served.process.wait(20) == 0


def test_registered_programs_survive_a_restart(tmp_path):
    from tests.service.test_programs import fresh

    with serve(tmp_path, workers=1) as served:
        id = served.client.post("/v1/programs", json={"program": fresh("kept")}).json()["id"]
    with serve(tmp_path, workers=1) as served:
        assert served.client.get(f"/v1/programs/{id}").json()["program"] == fresh("kept")
