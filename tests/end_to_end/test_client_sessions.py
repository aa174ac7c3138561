"""Programs and sessions of the Python client with a real service, and failures of the network."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

import backpass_client as bp
from backpass_client import Program, Service, Variable, tensorfile
from examples.models import line
from tests.programs import Sketch

FEEDS = {"x": np.array([[1.0, 2.0], [3.0, 4.0]]), "y": np.array([1.0, 0.0])}
W = np.array([0.5, -0.25])


def test_a_program_gives_gradients(service):
    program = bp.Program(service, line())
    found = program.gradients("loss", FEEDS, {"w": W}, fetch=["error"])

    assert (found.loss.item(), found.gradients["w"].tolist()) == (0.625, [0.5, 0.0])
    assert found.fetched["error"].tolist() == [-1.0, 0.5]
    assert program.document() == line() and program.signature["ops"] == 4
    assert bp.Program(service, program.id).signature == program.signature
    assert "w@GRAD" in str(program.backward("loss"))
    assert program.analysis("loss", {"x": (2, 2), "y": (2,)})["open_sizes"] == []
    assert program.check("loss", FEEDS, {"w": W})["passed"]


def test_a_session_opens_from_any_form_of_a_program(service):
    program = service.programs.create(line())

    for form in (program, program.id, line()):
        with service.create_session(form, "loss", {"w": W}, optimizer={"type": "sgd"}) as session:
            assert session.step(FEEDS).loss == 0.625


def test_repeated_gradients_and_evaluations_run_machine_code_on_request(service):
    program = bp.Program(service, line())
    asked = {"compile": "always", "fetch": ["error"]}

    gradients = [program.gradients("loss", FEEDS, {"w": W}, **asked) for _ in range(3)]
    with program.session("loss", {"w": W}, optimizer={"type": "sgd"}) as session:
        errors = session.evaluate(FEEDS, **asked)["error"]

    assert [(each.loss.item(), each.gradients["w"].tolist()) for each in gradients] == [(0.625, [0.5, 0.0])] * 3
    assert [each.fetched["error"].tolist() for each in gradients] == [errors.tolist()] * 3 == [[-1.0, 0.5]] * 3
    with pytest.raises(bp.Refused, match="compile"):
        program.gradients("loss", FEEDS, {"w": W}, compile="never")


def test_a_session_that_cannot_learn_warns_in_its_first_step(service):
    s = Sketch()
    for name in ("w", "v"):
        s.param(name, np.zeros(2))
    s.op("reduce_sum", s.op("mul", "w", "v"), out="loss")
    with Program(service, s.document).session("loss", s.values, optimizer={"type": "sgd"}) as session:
        with pytest.warns(UserWarning, match=r"every gradient is exactly zero: .* \(v, w\)"):
            session.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            session.step()


def test_threads_share_a_service_and_take_turns_with_a_session(service):
    program = bp.Program(service, line())
    with program.session("loss", {"w": W}, optimizer={"type": "sgd", "learning_rate": 0.01}) as session:
        with ThreadPoolExecutor(4) as threads:
            steps = list(threads.map(lambda _: session.step(FEEDS).said["step"], range(20)))
            losses = list(threads.map(lambda _: program.gradients("loss", FEEDS, {"w": W}).loss.item(), range(8)))
        assert sorted(steps) == list(range(1, 21))
        assert losses == [0.625] * 8


def test_steps_in_asyncio_run_beside_the_event_loop(service):
    async def trained() -> list[int]:
        with bp.Program(service, line()).session("loss", {"w": W}, optimizer={"type": "sgd"}) as session:
            steps = [asyncio.to_thread(session.step, FEEDS) for _ in range(3)]
            return sorted(step.said["step"] for step in await asyncio.gather(*steps))

    assert asyncio.run(trained()) == [1, 2, 3]


def test_sparse_gradients_are_read_and_sent_as_rows(service):
    E = np.arange(8.0).reshape(4, 2)
    document = {"blocks": [{"idx": 0, "parent_idx": -1, "vars": [
        {"name": "E", "dtype": "float64", "shape": [4, 2], "role": "parameter"},
        {"name": "ids", "dtype": "int64", "shape": [3], "role": "feed"}], "ops": [
        {"type": "embedding", "inputs": {"weight": ["E"], "ids": ["ids"]}, "outputs": {"out": ["rows"]},
         "attrs": {"is_sparse": True}},
        {"type": "reduce_sum", "inputs": {"x": ["rows"]}, "outputs": {"out": ["loss"]}}]}]}  # fmt: skip
    feeds = {"ids": np.array([3, 1, 3])}
    program = bp.Program(service, document)
    found = program.gradients("loss", feeds, {"E": E}).gradients["E"]

    assert (found.rows.tolist(), found.shape) == ([1, 3], (4, 2))
    assert found.whole().tolist() == [[0, 0], [1, 1], [0, 0], [2, 2]]
    with program.session("loss", {"E": E}, optimizer={"type": "sgd", "learning_rate": 0.5}) as session:
        step = session.step(feeds, return_gradients="all")
        session.update({"E": step.gradients["E"]})
        session.update({"E": bp.Rows(np.array([0, 0]), np.ones((2, 2)), (4, 2))})
        wanted = E - found.whole() - [[1, 1], [0, 0], [0, 0], [0, 0]]
        assert session.parameters()["E"].tolist() == wanted.tolist()


def test_a_session_repeats_rows_by_counts_that_grow_from_step_to_step(service):
    """The first step with more rows than the code of the session expects makes larger code; no step is lost."""
    s = Sketch()
    w = s.param("w", np.linspace(-1, 1, 12).reshape(4, 3))
    s.feed("counts", [0] * 4, "int64")
    s.total(s.op("square", s.op("repeat", w, "counts")))
    expected = s.values["w"].copy()

    with bp.Program(service, s.document).session(
        "loss", {"w": expected}, optimizer={"type": "sgd", "learning_rate": 0.0001}
    ) as session:
        for counts in ([1, 0, 2, 3], [2, 2, 2, 2], [300, 0, 2, 3], [5, 0, 200, 1], [2000, 1, 0, 900], [1, 1, 1, 1]):
            times = np.array(counts)[:, None]
            step = session.step({"counts": np.array(counts)}, return_gradients="all")
            np.testing.assert_allclose(step.loss, (times * expected**2).sum(), rtol=1e-9)
            np.testing.assert_allclose(step.gradients["w"], 2 * times * expected, rtol=1e-9)
            expected = expected - 0.0001 * step.gradients["w"]
        np.testing.assert_allclose(session.parameters()["w"], expected, rtol=1e-9)


def test_an_invalid_program_is_refused_with_the_place_of_each_mistake(service):
    wrong = line()
    wrong["blocks"][0]["ops"][0]["inputs"]["y"] = ["nowhere"]
    wrong["blocks"][0]["ops"][2]["type"] = "squar"

    with pytest.raises(bp.Refused) as caught:
        Program(service, wrong)

    refusal = caught.value
    assert [each["location"]["op"] for each in refusal.errors] == [0, 2]
    assert refusal.location == refusal.errors[0]["location"]
    assert "op 2 (squar)" in str(refusal) and "did you mean square" in str(refusal)


def test_a_session_trains_and_its_parameters_can_be_read_and_replaced(service):
    program = bp.Program(service, line())
    with program.session("loss", {"w": W}, optimizer={"type": "sgd", "learning_rate": 0.1}) as session:
        step = session.step(FEEDS, fetch=["error"], return_gradients="all")
        assert (step.loss.item(), step.fetched["error"].tolist()) == (0.625, [-1.0, 0.5])
        np.testing.assert_allclose(session.parameters()["w"], W - 0.1 * step.gradients["w"])
        session.update({"w": step.gradients["w"]})
        np.testing.assert_allclose(session.parameters()["w"], W - 0.2 * step.gradients["w"])
        session.put_parameters({"w": W})
        assert session.gradients(FEEDS).gradients["w"].tolist() == [0.5, 0.0]
        assert session.evaluate(FEEDS)["loss"] == 0.625
        assert (session.next_seq, session.view()["step"]) == (3, 2)
    with pytest.raises(bp.Refused) as caught:
        session.step(FEEDS)
    assert caught.value.code == "gone"


def test_another_session_continues_training_from_saved_parameters(service):
    program = Program(service, line())
    sgd = {"type": "sgd", "learning_rate": 0.1}
    with program.session("loss", {"w": W}, optimizer=sgd) as session:
        session.step(FEEDS)
        kept = session.parameters()
        losses = [session.step(FEEDS).loss.item() for _ in range(3)]
    with program.session("loss", optimizer=sgd, init={"seed": 3}) as session:
        session.put_parameters(kept)
        assert [session.step(FEEDS).loss.item() for _ in range(3)] == losses


def test_a_step_stopped_at_its_deadline_changes_nothing(service):
    s = Sketch()
    s.param("w", [0.5, 2.0])
    s.feed("n", np.array(0), "int64")
    m = s.const(0.01, [200, 200], out="m")
    with s.repeat("n"):  # ten thousand trips take seconds; the backward pass keeps none of their values
        s.op("tanh", s.op("matmul", m, m), out=m)
    s.total(s.op("mul", s.op("reduce_sum", m), "w"))
    with Program(service, s.document).session("loss", {"w": np.array([0.5, 2.0])}) as session:
        with pytest.raises(bp.Refused) as caught:
            session.step({"n": np.array(10_000)}, deadline_s=0.1)
        assert (caught.value.code, caught.value.status) == ("deadline-exceeded", 504)
        assert session.step({"n": np.array(3)}).said["step"] == 1


# --- failures of the network ---------------------------------------------------------------------------------------


class Flaky(httpx.BaseTransport):
    """A transport that fails the first `times` requests accepted by `lose`: after sending them, or before."""

    def __init__(self, lose: Callable[[httpx.Request], bool], times: int, sent: bool, error: Any) -> None:
        self.lose, self.times, self.sent, self.error = lose, times, sent, error
        self.inner = httpx.HTTPTransport()
        self.seen = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        hit = self.lose(request) and self.seen < self.times
        self.seen += hit
        if hit and not self.sent:
            return self.answer(request)
        response = self.inner.handle_request(request)
        if hit:
            response.read()
            return self.answer(request)
        return response

    def answer(self, request: httpx.Request) -> httpx.Response:
        if isinstance(self.error, httpx.Response):
            return self.error
        raise self.error("lost")


def flaky(url: str, pattern: str, times: int, sent: bool = True, error: Any = httpx.ReadError) -> Service:
    """A service whose first `times` requests with `pattern` in "<method> <path>" fail."""
    found = Service(url, attempts=3)
    found._http._transport = Flaky(
        lambda r: re.search(pattern, f"{r.method} {r.url.path}") is not None, times, sent, error
    )
    found._http._mounts = {}
    return found


def test_a_step_whose_answer_is_lost_is_executed_once(url):
    with flaky(url, "/steps", 2) as service, bp.Program(service, line()).session("loss", {"w": W}) as session:
        assert session.step(FEEDS).loss.item() == 0.625
        assert session.view()["step"] == 1


def test_ops_whose_answer_is_lost_are_appended_once(url):
    with flaky(url, "/ops$", 2) as service, bp.Tape(service) as tape:
        assert bp.tanh(Variable([0.0])).value == 0
        assert tape.view()["ops"] == 1


def test_client_resends_requests_refused_as_retryable(url):
    busy = httpx.Response(
        429, headers={"retry-after": "0"}, json={"code": "queue-full", "status": 429, "retryable": True}
    )
    with flaky(url, "POST /v1/tapes", 2, sent=False, error=busy) as service, bp.Tape(service) as tape:
        assert tape.view()["state"] == "ready"


def test_a_session_whose_answer_is_lost_is_created_once(url):
    def ids() -> set[str]:
        return {each["id"] for each in httpx.get(f"{url}/v1/sessions?page_size=200", timeout=60).json()["sessions"]}

    before = ids()
    with flaky(url, "POST /v1/sessions", 2) as service, bp.Program(service, line()).session("loss") as session:
        assert ids() - before == {session.id}


def test_a_step_after_an_outage_has_the_number_of_the_lost_one(url):
    with flaky(url, "/steps", 3) as service, bp.Program(service, line()).session("loss", {"w": W}) as session:
        with pytest.raises(bp.Unreachable):
            session.step(FEEDS)
        assert session.step(FEEDS).said["step"] == 1  # with the same sequence number, after the outage


def test_after_an_outage_another_step_takes_the_next_sequence_number(url):
    for sent, steps in ((True, 2), (False, 1)):
        with flaky(url, "/steps", 3, sent) as service, Program(service, line()).session("loss", {"w": W}) as session:
            with pytest.raises(bp.Unreachable):
                session.step(FEEDS)
            other = session.step({"x": FEEDS["x"][:1], "y": FEEDS["y"][:1]})
            assert other.said["step"] == steps
            assert session.next_seq == steps + 1


def test_a_session_continues_from_its_id_and_takes_lists_of_the_declared_dtypes(service):
    @bp.program
    def short(x=bp.f32["batch", 2]):
        return {"loss": (x @ bp.parameter("w", [2], init=[1, 2])).sum()}

    with service.create_session(short, optimizer={"type": "sgd", "learning_rate": 1.0}) as first:
        first.step({"x": [[1, 0]]})
        again = bp.Session(service, first.id)
        assert (again.next_seq, again.step({"x": [[1, 0]]}).loss) == (2, 0)
        checkpoint = again.checkpoint()
    with bp.Session.from_checkpoint(service, checkpoint) as copied:
        assert copied.evaluate({"x": [[1, 1]]})["loss"] == 1  # w = [1, 2] - 2 [1, 0]
    checkpoint.delete()
    with pytest.raises(bp.Refused, match="not-found"):
        bp.Session(service, "ses_" + "a" * 26)


def test_a_sequence_number_used_by_another_client_is_a_conflict(url, service):
    with Program(service, line()).session("loss", {"w": W}) as session:
        stale = bp.Session(service, session.view())
        session.step(FEEDS)
        with pytest.raises(bp.Refused, match="used with another body") as caught:
            stale.step({"x": FEEDS["x"][:1], "y": FEEDS["y"][:1]})
        assert caught.value.code == "sequence-conflict"


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("error", [httpx.ReadError, KeyboardInterrupt])
def test_a_tape_works_after_an_outage(url, sent, error):
    with flaky(url, "/ops$", 3 if error is httpx.ReadError else 1, sent, error) as service, bp.Tape(service) as tape:
        w, x = Variable([2.0], name="w"), Variable([3.0])
        with pytest.raises((bp.Unreachable, KeyboardInterrupt)):
            bp.tanh(w) * x
        (w * w).sum().backward()
        assert (w.grad.tolist(), x.grad) == ([4.0], None)
        assert tape.view()["ops"] <= 3


def test_client_never_resends_a_request_that_timed_out(url):
    with flaky(url, "/gradients", 9, error=httpx.ReadTimeout) as service:
        program = Program(service, line())
        with pytest.raises(bp.Unreachable, match="lost"):
            program.gradients("loss", FEEDS, {"w": W})
        assert service._http._transport.seen == 1


def test_an_error_while_closing_does_not_hide_the_first_error(url):
    def opened() -> list[Any]:
        service = flaky(url, "DELETE", 9, sent=False, error=httpx.ConnectError)
        service.attempts = 1
        return [bp.Tape(service), Program(service, line()).session("loss")]

    for thing in opened():
        with pytest.raises(ZeroDivisionError), thing:
            raise ZeroDivisionError
    for thing in opened():
        with pytest.raises(bp.Unreachable), thing:
            pass


def test_a_connection_is_closed_only_by_its_owner(url, service):
    with bp.Tape(url) as tape, Program(url, line()) as program:
        assert bp.tanh(Variable([0.0])).value == 0
    with bp.Tape(service), Program(service, line()):
        pass
    assert tape.service._http.is_closed and program.service._http.is_closed
    assert service.ops()
    with pytest.raises(bp.Refused, match="gone"):
        service.call("POST", f"{tape.path}/backward", {"target": "e1"})


def test_an_unreachable_service_raises_unreachable():
    with Service("http://127.0.0.1:9", attempts=2) as service, pytest.raises(bp.Unreachable):
        service.ops()


# --- files -----------------------------------------------------------------------------------------------------------


def test_tensor_files_are_compatible_with_safetensors():
    f = np.arange(12.0).reshape(3, 4) / 7
    arrays = {"f": f, "i": np.arange(6, dtype=np.int8), "b": np.array([True, False]), "s": np.array(2.5, "float32")}
    found = load(tensorfile.pack(arrays, {"n": np.int64(3), "list": (1, 2)}))
    said, back = tensorfile.unpack(save(arrays, {"response": '{"x": 1}'}))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(back[name], array)
    assert said == {"x": 1}
    back["f"][0] = 0
    assert tensorfile.pack({"t": f.T[::2]}, {}).endswith(np.ascontiguousarray(f.T[::2]).tobytes())
    with pytest.raises(bp.BackpassError, match="complex128"):
        tensorfile.pack({"c": np.array(1j)}, {})


def test_a_session_takes_several_batches_and_accumulates_gradients(service):
    """Steps in one call, accumulating calls and single steps, all checked against gradients by hand."""
    x, y = np.stack([FEEDS["x"], 2 * FEEDS["x"]]), np.stack([FEEDS["y"], -FEEDS["y"]])

    def gradient(w: np.ndarray, i: int) -> np.ndarray:
        return x[i].T @ (x[i] @ w - y[i])

    program = bp.Program(service, line())
    sgd = {"type": "sgd", "learning_rate": 0.01}
    with program.session("loss", {"w": W}, optimizer=sgd) as session:
        found = session.step({"x": x, "y": y}, batches=2)
        first = W - 0.01 * gradient(W, 0)
        second = first - 0.01 * gradient(first, 1)
        assert found.loss == pytest.approx([((x[0] @ W - y[0]) ** 2).mean(), ((x[1] @ first - y[1]) ** 2).mean()])
        assert session.parameters()["w"] == pytest.approx(second)

        for i in range(2):
            assert session.gradients({"x": x[i], "y": y[i]}, accumulate=True).gradients == {}
        session.discard_gradients()
        for i in range(2):
            session.gradients({"x": x[i], "y": y[i]}, accumulate=True)
        session.change_optimizer(learning_rate=0.02)
        said = session.update(reduction="mean")
        mean = (gradient(second, 0) + gradient(second, 1)) / 2
        assert session.parameters()["w"] == pytest.approx(second - 0.02 * mean)
        assert (said["learning_rate"], said["accumulated"], session.next_seq) == (0.02, 0, said["next_seq"])


def test_a_step_of_several_that_fails_raises_with_the_steps_before_it(service):
    x = np.stack([FEEDS["x"], np.full((2, 2), np.nan)])
    with bp.Program(service, line()).session("loss", {"w": W}, optimizer={"type": "sgd"}) as session:
        with pytest.raises(bp.Stopped, match="batch 1 failed after 1 steps") as error:
            session.step({"x": x, "y": FEEDS["y"]}, batches=2, require_finite=True)

        assert (error.value.step.said["applied"], len(error.value.step.loss)) == (1, 1)
        assert session.step(FEEDS).said["step"] == 2


def test_a_session_of_targets_takes_their_cotangents(service):
    cotangent = np.array([2.0, -1.0])
    optimizer = {"type": "sgd", "learning_rate": 0.5}
    with bp.Program(service, line()).session(None, {"w": W}, targets=["line"], optimizer=optimizer) as session:
        found = session.gradients({"x": FEEDS["x"]}, target_gradients=[cotangent])
        session.step({"x": FEEDS["x"]}, target_gradients=[cotangent])

        assert found.gradients["w"].tolist() == (FEEDS["x"].T @ cotangent).tolist()
        assert session.parameters()["w"].tolist() == (W - 0.5 * FEEDS["x"].T @ cotangent).tolist()


def test_lists_are_sent_with_the_dtype_of_their_feed_and_arrays_with_their_own(service):
    s = Sketch()
    s.feed("x", np.array([1.0, 2.0], "float32"), dtype="float32")
    s.param("w", np.array([3.0, 5.0], "float32"), dtype="float32")
    s.op("reduce_sum", s.op("mul", "x", "w"), out="loss")
    program = bp.Program(service, s.document)

    assert program.gradients("loss", {"x": [1.0, 2.0]}, {"w": [3.0, 5.0]}).gradients["w"].tolist() == [1.0, 2.0]
    with program.session("loss", {"w": [3.0, 5.0]}, optimizer={"type": "sgd", "learning_rate": 1.0}) as session:
        assert session.evaluate({"x": [1.0, 2.0]})["loss"].item() == 13.0
        assert session.step({"x": [1, 2]}).loss.item() == 13.0
        with pytest.raises(bp.Refused, match="float64"):
            session.step({"x": np.array([1.0, 2.0])})
        session.put_parameters({"w": [1.0, 2.0]})
        assert session.parameters()["w"].tolist() == [1.0, 2.0]


def test_values_and_names_in_the_wrong_place_are_refused_before_they_are_sent(service):
    program = service.programs.create(line())

    with program.session("loss", {"w": W}) as session:
        assert session.evaluate(FEEDS, "error")["error"].tolist() == [-1.0, 0.5]
        for wrong, message in (
            (lambda: program.gradients(FEEDS, {"w": W}), "the first argument is the name of the loss"),
            (lambda: service.create_session(line(), {"w": W}), "the first argument is the name of the loss"),
            (lambda: program.gradients("loss", W), "values are given as a dictionary .*, not as a ndarray"),
            (lambda: session.step(W), "values are given as a dictionary of names and arrays, not as a ndarray"),
            (lambda: session.step(x=FEEDS["x"]), "'x' is an array: give values as a dictionary"),
            (lambda: session.evaluate(x=FEEDS["x"]), "'x' is an array: give values as a dictionary"),
            (
                lambda: session.step(FEEDS, return_gradients=True),
                "names of variables are given as a list, not as a bool",
            ),
        ):
            with pytest.raises(TypeError, match=message):
                wrong()
        assert session.next_seq == 1


def test_the_curves_of_a_session_are_columns(service):
    with service.create_session(line(), "loss", {"w": np.zeros(2)}, optimizer={"type": "sgd"}) as session:
        losses = [session.step({"x": [[1, 2]], "y": [i + 1]}).loss for i in range(4)]

        curves = session.metrics()
        later = session.metrics(after=int(curves["point"][2]))

        assert [each.dtype.kind for each in curves.values()] == list("iifffff")
        assert curves["step"].tolist() == [1, 2, 3, 4] and later["step"].tolist() == [4]
        assert curves["loss"].tolist() == [float(each) for each in losses]
        assert np.isnan(curves["gradient_norm"]).all()
        assert len(session.metrics(points=2)["step"]) <= 3


def test_the_events_of_a_session_are_its_steps_until_it_is_closed(service):
    session = service.create_session(line(), "loss", {"w": np.zeros(2)}, optimizer={"type": "sgd"})
    session.step({"x": [[1, 2]], "y": [1]})
    steps: list[int] = []
    for kind, data in session.events():
        if kind == "closed":
            break
        steps += data["columns"]["step"].tolist()
        if len(steps) < 3:
            session.step({"x": [[1, 2]], "y": [1]})
        else:
            session.close()

    assert (kind, steps) == ("closed", [1, 2, 3])
    assert "deleted" in data["reason"]
    with pytest.raises(bp.Refused, match="gone"):
        next(session.events())


def test_histograms_count_the_elements_of_parameters(service):
    with service.create_session(line(), "loss", {"w": [0.0, 3.0]}, optimizer={"type": "sgd"}) as session:
        found = session.histograms("w", bins=3)
        assert list(session.histograms()) == ["w"]
        with pytest.raises(bp.Refused, match="absent"):
            session.histograms("absent")

    assert list(found) == ["w"]
    assert (found["w"]["counts"], found["w"]["zeros"], found["w"]["max"]) == ([1, 0, 1], 1, 3.0)
