"""Jobs through the Python client."""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

import backpass_client as bp
from backpass_client import Job, JobFailed, Program, Refused, Service
from backpass_client.event_streams import _events
from examples.digits import load
from examples.models import digits_mlp

ADAM = {"type": "adam", "learning_rate": 0.01}


@pytest.fixture(scope="module")
def dataset(url: str) -> str:
    train, _ = load()
    with Service(url) as service:
        return service.datasets.upload({"x": train.x[:300], "y": train.y[:300]}, name="digits").id


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also in a process that a shell has started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_session_is_fitted_and_goes_on_with_its_own_steps(url, dataset):
    train, _ = load()
    with Service(url) as service, Program(service, digits_mlp()).session("loss", optimizer=ADAM) as session:
        kinds = []
        curves = session.fit(dataset, epochs=3, batch_size=50, metrics=["accuracy"], validation={"fraction": 0.1},
                             progress=False, on_event=lambda kind, data: kinds.append(kind))  # fmt: skip
        assert curves["step"].tolist() == list(range(1, 19))
        assert curves["loss"][-1] < curves["loss"][0]
        assert len(curves["validation/step"]) == kinds.count("validation") == 3
        step = session.step({"x": train.x[:50], "y": train.y[:50]})
        assert (step.said["step"], step.said["seq"]) == (19, session.next_seq - 1)


def test_mistakes_are_told_before_anything_runs(url, dataset):
    with Service(url) as service:
        with pytest.raises(Refused) as caught:
            service.jobs.submit(dataset, program=digits_mlp(), loss="loss", feeds={"x": "nope"}, metrics=["h"])
        assert {each["pointer"] for each in caught.value.errors} == {"/feeds/x", "/metrics/0"}


def test_a_failed_job_raises_with_its_reason(url, dataset):
    huge = {"type": "sgd", "learning_rate": 1e30}
    with Service(url) as service:
        job = service.jobs.submit(dataset, program=digits_mlp(), loss="loss", optimizer=huge, epochs=50)
        with pytest.raises(JobFailed, match="numeric-error") as caught:
            job.wait(progress=False)
        assert caught.value.view["error"]["code"] == "numeric-error"
        assert job.id in [each.id for each in service.jobs.list("failed")]
        job.delete()


@pytest.mark.parametrize("on_interrupt", ["cancel", "detach"])
def test_an_interrupt_cancels_the_job_or_leaves_it(url, dataset, on_interrupt, interruptible):
    with Service(url) as service:
        job = service.jobs.submit(dataset, program=digits_mlp(), loss="loss", optimizer=ADAM, epochs=100_000)
        seen = itertools.count()

        def interrupt(kind: str, data: object) -> None:
            while next(seen) >= 3:  # again if the first KeyboardInterrupt ends a callback of the garbage collector
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            job.wait(progress=False, on_event=interrupt, on_interrupt=on_interrupt)
        view = job.view()
        assert (view["state"] in ("canceled",) or view["asked"] == "cancel") is (on_interrupt == "cancel")
        job.cancel()
        list(job.events())
        assert job.view()["state"] == "canceled"


def test_a_stream_that_breaks_at_random_goes_on_without_loss_or_repetition(url, dataset):
    rng = np.random.default_rng(1)
    with Service(url) as service:
        job = service.jobs.submit(dataset, program=digits_mlp(), loss="loss", optimizer=ADAM, epochs=60,
                                  validation={"fraction": 0.1})  # fmt: skip
        stream = service.stream

        def breaking(method: str, path: str, **more: object):
            answer = stream(method, path, **more)

            class Broken:
                def __enter__(self):
                    self.found = answer.__enter__()
                    lines, left = self.found.iter_lines(), int(rng.integers(5, 40))

                    def some():
                        for i, line in enumerate(lines):
                            if i == left:
                                raise httpx.ReadError("cut")
                            yield line

                    self.found.iter_lines = some
                    return self.found

                def __exit__(self, *error: object):
                    return answer.__exit__(*error)

            return Broken()

        service.stream = breaking  # type: ignore[method-assign]
        ids = [data["id"] for _, data in job.events()]
        assert ids == list(range(1, len(ids) + 1))
        assert len(ids) > 100


def test_a_job_is_paused_and_resumed_and_saves_checkpoints(url, dataset):
    with Service(url) as service:
        job = service.jobs.submit(dataset, program=digits_mlp(), loss="loss", optimizer=ADAM, epochs=200,
                                  save_every={"steps": 500})  # fmt: skip
        threading.Timer(0.1, job.pause).start()
        for kind, data in job.events():
            if kind == "state" and data["state"] == "paused":
                job.resume()
        view = job.view()
        assert (view["state"], view["step"]) == ("succeeded", 2000)
        made = job.checkpoints()
        assert [each.said["step"] for each in made] == [500, 1000, 1500, 2000]
        again = service.jobs.submit(dataset, from_checkpoint=made[0].id, epochs=1)
        assert again.wait(progress=False)["state"] == "succeeded"
        assert service.call("GET", f"/v1/sessions/{again.session_id}")["step"] == 510
        assert isinstance(service.jobs.get(job.id), Job)


def test_half_an_event_at_the_end_of_a_stream_is_left_out():
    lines = ["retry: 1000", "", ": still here", "", "id: 1", "event: a", 'data: {"x":1}', "", "event: reset",
             'data: {"oldest":5}', "", "id: 2", "event: a"]  # fmt: skip
    assert list(_events(iter(lines))) == [(1, "a", {"x": 1}), (None, "reset", {"oldest": 5})]


# --- programs and sessions of the client -------------------------------------------------------------------------


@bp.program
def slope(x=bp.f64["batch"], y=bp.f64["batch"]):
    return {"loss": bp.mse_loss(x * bp.parameter("w", bp.f64, init=1.0), y)}


SLOPE = {"x": np.array([1.0, 2.0, 3.0, 4.0]), "y": np.array([3.0, 6.0, 9.0, 12.0])}
SGD = {"type": "sgd", "learning_rate": 0.01}


def by_hand(w: float, steps: int) -> float:
    for _ in range(steps):
        w -= 0.01 * float(2 * ((w * SLOPE["x"] - SLOPE["y"]) * SLOPE["x"]).mean())
    return w


def test_a_job_trains_any_form_of_a_program_or_session(url):
    with Service(url) as service:
        data = service.datasets.upload(SLOPE, name="slope")
        registered = service.programs.create(slope)
        forms = [
            {"program": slope, "optimizer": SGD},
            {"program": registered, "optimizer": SGD},
            {"program": slope.document(), "loss": "loss", "optimizer": SGD, "parameters": {"w": 1.0}},
            {"session": service.create_session(slope, optimizer=SGD)},
            {"session": service.create_session(slope, optimizer=SGD).id},
        ]
        for form in forms:
            job = service.jobs.submit(data, steps=3, batch_size=4, **form)
            job.wait(progress=False)
            trained = service.sessions.get(job.session_id).parameters()["w"]
            np.testing.assert_allclose(trained, by_hand(1.0, 3), rtol=1e-12)

        saved = service.sessions.get(job.session_id).checkpoint()
        again = service.jobs.submit(data, from_checkpoint=saved, steps=2, batch_size=4)
        again.wait(progress=False)
        other = registered.session(from_checkpoint=saved)
        assert other.view()["step"] == 3
        np.testing.assert_allclose(
            service.sessions.get(again.session_id).parameters()["w"], by_hand(1.0, 5), rtol=1e-12
        )


def test_a_file_in_place_of_a_checkpoint_names_the_way_to_store_it(url, tmp_path):
    with Service(url) as service:
        path = service.create_session(slope, optimizer=SGD).checkpoint().download(tmp_path / "slope.safetensors")
        for given in (path, str(path)):
            with pytest.raises(TypeError, match=r"store the file first, with service.checkpoints.upload\(path\)"):
                bp.Session.from_checkpoint(service, given)
            with pytest.raises(TypeError, match=r"service.checkpoints.upload"):
                service.create_session(slope, from_checkpoint=given)
        assert bp.Session.from_checkpoint(service, service.checkpoints.upload(path)).view()["step"] == 0
