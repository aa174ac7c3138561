"""A worker whose GPU is emulated: its steps equal those of a worker on the processor, and its failures are answered."""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from core.compiler.backends import CHOSEN, use_backend
from core.device.backend import DeviceBackend
from core.device.bound_step import DeviceBoundStep
from core.device.driver import DeviceFault
from core.device.leaving import Leaving
from core.ir import TensorType
from core.ir.builder import BlockBuilder
from core.ir.errors import ExecutionError
from core.runtime.native import native_interpreter
from core.runtime.run import Run
from service import gpu_tests
from service.objects.tensor_file import chunks
from service.settings import Settings
from service.worker import gpu, gpu_deadline, main, sessions, snapshot, training
from service.worker.program_cache import machine_for
from service.worker.state import WorkerState
from tests.cupy_stand_in import Array, installed
from tests.device.driver import MICROSECOND, EmulatedDriver
from tests.device.emulator import compiler
from tests.device.worker_gpu import backend_on, emulated_cuda
from tests.service.prepared import prepared
from tests.service.worker import test_fit
from tests.service.worker.test_last_step import RNG, WRONG, Side, feeds, going, noisy, same

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


@pytest.fixture
def cupy():
    with installed() as module:
        yield module


@pytest.fixture
def driver(cupy):
    return EmulatedDriver(xp=cupy)


@pytest.fixture
def backend(driver):
    backend = backend_on(driver)
    before = use_backend(backend)
    with emulated_cuda(driver):
        yield backend
    use_backend(before)


class GpuSide(Side):
    """A session in a worker on the emulated GPU."""

    def __init__(self, sketch: Any, backend: DeviceBackend) -> None:
        xp = backend.driver.xp
        settings = Settings(compile="always").model_dump(mode="json")
        self.state = WorkerState("w", "cuda", xp, settings, going(), gpu=backend)  # type: ignore[arg-type]
        adam = {"type": "adam", "attrs": {"learning_rate": 0.05}}
        asked = {"id": "s", "document": sketch.document, "query": {"loss": "loss"}, "optimizer": adam, "clip": None}
        given = {n: v for n, v in sketch.values.items() if n not in ("x", "i")}
        sessions.create(self.state, {**asked, "seed": 3, "initializers": {}}, given)

    def held(self) -> dict[str, np.ndarray]:
        s = self.session
        held = {k: v for each in (s.parameters, s.states, s.slots) for k, v in each.items()}
        assert all(isinstance(v, Array) for v in held.values()), "values stay on the GPU"
        return {k: self.state.to_host(v) for k, v in held.items()}


@pytest.fixture
def sides(backend):
    sketch = noisy()
    return GpuSide(sketch, backend), Side(sketch, "never")


def test_steps_on_a_gpu_equal_those_on_the_processor(sides, driver):
    on_gpu, on_cpu = sides
    for number in range(6):
        given = feeds()
        same(on_gpu.step(given, "all"), on_cpu.step(given, "all"))
        assert on_gpu.is_bound == (number > 0)
        same(on_gpu.held(), on_cpu.held())
    assert isinstance(on_gpu.session.last_step.bound, DeviceBoundStep)
    assert driver.graph_launches


BATCHES = [("none", {"batches": 5}), ("all", {"batches": 5}), ("none", {"accumulate": 5, "reduction": "mean"})]


@pytest.mark.parametrize(("returned", "more"), BATCHES)
def test_several_batches_in_one_call_equal_those_on_the_processor(sides, returned, more):
    on_gpu, on_cpu = sides
    for _ in range(2):
        given = feeds(RNG.standard_normal((5, 4, 3)).astype("float32"), i=np.tile(np.asarray([0, 1, 2, 1]), (5, 1)))
        same(on_gpu.step(given, returned, **more), on_cpu.step(given, returned, **more))
        same(on_gpu.held(), on_cpu.held())


def test_the_values_of_a_batch_come_while_the_next_one_runs(sides, driver, monkeypatch):
    on_gpu, on_cpu = sides
    given = feeds(RNG.standard_normal((6, 4, 3)).astype("float32"), i=np.tile(np.asarray([0, 1, 2, 1]), (6, 1)))
    launches, moments = lambda: driver.launches, []
    send, arrays = DeviceBoundStep.send, Leaving.arrays

    def sending(self, results):
        moments.append([launches()])
        return send(self, results)

    def arriving(self):
        next(each for each in moments if len(each) == 1).append(launches())
        return arrays(self)

    monkeypatch.setattr(DeviceBoundStep, "send", sending)
    monkeypatch.setattr(Leaving, "arrays", arriving)
    same(on_gpu.step(given, batches=6), on_cpu.step(given, batches=6))

    assert len(moments) == 4  # the first two steps are not bound
    assert all(later > sent for sent, later in moments[:-1])


def test_a_loss_that_is_not_finite_in_one_of_several_batches_is_reported(sides):
    xs = RNG.standard_normal((6, 4, 3)).astype("float32")
    given = feeds(xs, i=np.tile(np.asarray([0, 1, 2, 1]), (6, 1)))
    for side in sides:
        said, _ = asked_for(side, given)
        assert said["finite"]
    xs = xs.copy()
    xs[4] = np.inf
    for side in sides:
        said, found = asked_for(side, feeds(xs, i=given["i"]))
        assert not said["finite"] and said["applied"] == 6
        assert np.isfinite(found["loss"]).tolist() == [True, True, True, True, False, False]


def asked_for(side, given):
    asked = {"id": "s", "seq": 1, "fetch": [], "require_finite": False, "returned": "none", "batches": 6}
    return training.step(side.state, asked, given)


def test_gradients_that_are_added_up_equal_those_on_the_processor(sides):
    given = feeds(RNG.standard_normal((4, 4, 3)).astype("float32"), i=np.tile(np.asarray([0, 1, 2, 1]), (4, 1)))
    for side in sides:
        asked = {"id": "s", "seq": 1, "fetch": [], "returned": "none", "stream": False, "tables": {}}
        for _ in range(2):
            training.gradients(side.state, {**asked, "accumulate": True, "batches": 4}, given)
        training.update(side.state, {**asked, "require_finite": True}, {})
    same(sides[0].held(), sides[1].held())


def test_other_calls_between_bound_steps_see_and_change_their_values(sides):
    def put(side: Side) -> None:
        sessions.put_parameters(side.state, {"id": "s"}, {"w": np.ones((3, 2), "float32")})

    def read(side: Side) -> Any:
        _, found = sessions.get_parameters(side.state, {"id": "s", "names": None}, {})
        return {name: np.array(side.state.to_host(value)) for name, value in found.items()}

    def evaluate(side: Side) -> Any:
        _, found = training.evaluate(side.state, {"id": "s", "fetch": ["loss"]}, given)
        return np.array(side.state.to_host(found["fetch/loss"]))

    def profile(side: Side) -> Any:
        return side.step(given, profile=True)

    def stream(side: Side) -> Any:
        side.step(given, "all", stream=True)

    given = feeds()
    for between in (put, read, evaluate, profile, stream):
        for _ in range(3):
            same(*(side.step(given, "all") for side in sides))
        same(*(between(side) for side in sides))
    same(*(side.step(given, "all") for side in sides))
    same(*(side.held() for side in sides))


def test_a_fit_equals_one_on_the_processor(backend, tmp_path, monkeypatch):
    prepared(str(tmp_path / "objects")).write(test_fit.KEY, chunks(test_fit.COLUMNS, {}))
    on_cpu = test_fit.Side(tmp_path, test_fit.classifier(), compile="never")
    monkeypatch.setattr(test_fit, "WorkerState", partial(gpu_state, backend))
    on_gpu = test_fit.Side(tmp_path, test_fit.classifier(), compile="always")
    said = [side.fit(test_fit.described(drop=True), 0, 12) for side in (on_gpu, on_cpu)]

    same(*({name: np.array(curve) for name, curve in each["curves"].items()} for each in said))
    assert said[0]["step"] == said[1]["step"] == 12
    held = on_gpu.session.parameters | on_gpu.session.states | on_gpu.session.slots
    same({name: on_gpu.state.to_host(value) for name, value in held.items()}, on_cpu.held())
    assert isinstance(on_gpu.session.last_step.bound, DeviceBoundStep)


def gpu_state(backend: DeviceBackend, worker: str, device: str, xp: Any, *rest: Any) -> WorkerState:
    return WorkerState(worker, "cuda", backend.driver.xp, *rest, gpu=backend)


def test_a_profile_has_the_times_of_the_kernels_of_a_gpu_and_changes_no_bit(backend, driver):
    sketch = noisy()
    on_gpu, plain = GpuSide(sketch, backend), GpuSide(sketch, backend)
    given = feeds()
    for side in (on_gpu, plain):
        side.step(given)
    asked = {"id": "s", "seq": 2, "fetch": [], "require_finite": False, "returned": "none"}
    before = driver.seconds

    said, _ = training.step(on_gpu.state, {**asked, "profile": True}, given)

    spent = driver.seconds - before - MICROSECOND  # a copy of the words of the run, which is no kernel of the step
    training.step(plain.state, asked, given)
    kernels = said["profile"]["kernels"]
    assert said["profile"]["peak_bytes"] == plain.session.last_step.compiled.executable.peak(True).peak > 0
    assert any(each["kernel"].startswith("product") for each in kernels)
    assert {each["compiled"] for each in kernels} == {True} and {each["calls"] for each in kernels} == {1}
    assert sum(each["ms"] for each in kernels) == pytest.approx(spent * 1e3)
    for name, value in on_gpu.held().items():
        assert value.tobytes() == plain.held()[name].tobytes(), name


@pytest.mark.parametrize("wrong", WRONG)
def test_a_bound_step_that_fails_changes_nothing(sides, wrong):
    on_gpu, on_cpu = sides
    for _ in range(3):
        given = feeds()
        same(on_gpu.step(given), on_cpu.step(given))
    before = on_gpu.held(), on_gpu.session.about()

    codes = [side.step(WRONG[wrong], require_finite=True) for side in sides]

    assert isinstance(codes[0], str) and codes[0] == codes[1]
    same((on_gpu.held(), on_gpu.session.about()), before)
    given = feeds()
    same(on_gpu.step(given, "all"), on_cpu.step(given, "all"))


def test_a_saved_session_goes_on_on_the_processor_and_the_other_way_round(sides, tmp_path):
    for side in sides:
        side.state.settings |= {"objects": prepared(str(tmp_path)).url}
    on_gpu, on_cpu = sides
    for source, target, key in ((on_gpu, on_cpu, "checkpoints/a"), (on_cpu, on_gpu, "checkpoints/b")):
        for _ in range(3):
            source.step(feeds())
        said, _ = snapshot.save(source.state, {"id": "s", "key": key}, {})
        restored = {"id": "s", "key": key, "document": noisy().document, "sha256": said["sha256"]}
        snapshot.restore(target.state, restored, {})
        same(on_gpu.held(), on_cpu.held())
        given = feeds()
        same(on_gpu.step(given), on_cpu.step(given))


@pytest.mark.parametrize("call", ["allocate", "pinned"])
def test_too_little_memory_fails_one_call_or_none(sides, driver, call):
    on_gpu, on_cpu = sides
    refused = 0
    for number in range(8):
        given = feeds()
        driver.failing = {} if number % 2 else {call: number // 2}
        before = on_gpu.held() if number else {}
        found, driver.failing = on_gpu.step(given), {}
        if found == "out_of_memory":
            refused += 1
            if number:
                same(on_gpu.held(), before)
            found = on_gpu.step(given)
        same(found, on_cpu.step(given))
        same(on_gpu.held(), on_cpu.held())
    assert refused


def test_a_failed_gpu_is_a_fault_of_the_whole_process(sides, driver):
    on_gpu, _ = sides
    for _ in range(3):
        on_gpu.step(feeds())
    driver.failing = {"launch": 0}

    with pytest.raises(DeviceFault, match="an illegal address"):
        on_gpu.step(feeds())
    with pytest.raises(DeviceFault):
        on_gpu.step(feeds())


# --- the test of machine code at the start ------------------------------------------------------------------------


@pytest.fixture
def unused(monkeypatch):
    """The backend of this process, which must be the same afterwards."""
    before = CHOSEN.backend
    yield before
    use_backend(before)


def test_a_gpu_whose_test_succeeds_is_used_and_its_code_is_kept(driver, unused, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32: backend_on(driver, disk))

    found = gpu.use_gpu(tmp_path / "code", 1 << 20)

    assert found is not None and CHOSEN.backend is found
    assert driver.launches and driver.graph_launches
    assert len(list((tmp_path / "code").iterdir())) == 1


@pytest.mark.parametrize("rounds", [False, True])
def test_a_setting_lets_products_of_float32_numbers_round_to_tf32(driver, cupy, unused, monkeypatch, tmp_path, rounds):
    monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32: backend_on(driver, disk, tf32))
    settings = Settings(tf32=rounds, cache_dir=tmp_path / "code").model_dump(mode="json")
    state = WorkerState("w", "cuda", cupy, settings, going())

    main._prepare_code(state, None)

    number = np.float32(1 + 2.0**-13)  # TF32 has no bits below 2**-10
    b = BlockBuilder()
    x, y = b.param(TensorType((16, 16), "float32")), b.param(TensorType((16, 16), "float32"))
    native = native_interpreter(b.build([b.emit("matmul", x, y)]), state.gpu)
    (found,) = native(Run(cupy), cupy.asarray(np.full((16, 16), number)), cupy.asarray(np.eye(16, dtype="float32")))
    assert (state.to_host(found) == (1 if rounds else number)).all()


def wrong_numbers(driver, monkeypatch):
    launch = type(driver.stream()).copy

    def shifted(self, target, source, nbytes):
        launch(self, target, source, nbytes)
        if nbytes == gpu.TERMS * gpu.COLUMNS * 4:  # the parameter on its way to the host
            self.synchronize()
            (ctypes.c_float * 1).from_address(target)[0] += 1.0

    monkeypatch.setattr(type(driver.stream()), "copy", shifted)


def no_blocks(driver, monkeypatch):
    def refused(code, launches):
        raise ExecutionError("this GPU runs no blocks", "compiler_failed")

    monkeypatch.setattr(driver, "load", refused)


def no_memory(driver, monkeypatch):
    driver.capacity = 64


def no_cupy(driver, monkeypatch):
    def missing(disk, tf32):
        raise ImportError("no module named cupy")

    monkeypatch.setattr(gpu, "open_gpu", missing)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (wrong_numbers, "run 1 of a small step gives wrong numbers for 'w'"),
        (no_blocks, "this GPU runs no blocks"),
        (no_memory, "finds no memory"),
        (no_cupy, "no module named cupy"),
    ],
)
def test_a_gpu_whose_test_fails_runs_op_by_op(driver, unused, monkeypatch, tmp_path, caplog, spoil, reason):
    monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32: backend_on(driver, disk))
    spoil(driver, monkeypatch)

    with caplog.at_level(logging.WARNING):
        assert gpu.use_gpu(tmp_path / "code", 1 << 20) is None

    assert CHOSEN.backend is unused
    assert [reason in each.message for each in caplog.records] == [True]


def test_a_gpu_that_breaks_in_its_test_ends_the_worker(driver, unused, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32: backend_on(driver, disk))
    driver.failing = {"launch": 0}

    with pytest.raises(RuntimeError, match="BACKPASS_COMPILE=never"):
        gpu.use_gpu(tmp_path / "code", 1 << 20)
    assert CHOSEN.backend is unused


def test_a_worker_after_two_whose_tests_broke_the_gpu_runs_op_by_op(cupy, unused, monkeypatch, tmp_path, caplog):
    for _ in range(2):
        broken = EmulatedDriver(xp=cupy, failing={"launch": 0})
        monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32, broken=broken: backend_on(broken, disk))
        with pytest.raises(RuntimeError):
            gpu.use_gpu(tmp_path / "code", 1 << 20)
    monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32: backend_on(EmulatedDriver(xp=cupy), disk))

    with caplog.at_level(logging.WARNING):
        assert gpu.use_gpu(tmp_path / "code", 1 << 20) is None

    assert "machine code broke the GPU: the GPU failed: an illegal address" in caplog.text
    assert CHOSEN.backend is unused
    ((_, record),) = gpu_tests.unfinished(tmp_path / "code")
    assert "an illegal address" in record.why


def test_a_test_that_does_not_end_ends_the_process_and_leaves_its_reason(driver, unused, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "open_gpu", lambda disk, tf32: backend_on(driver, disk))
    left = threading.Event()
    statuses = []

    def leave(status):
        statuses.append(status)
        left.set()

    monkeypatch.setattr(gpu, "check_gpu", lambda backend: left.wait(30))
    monkeypatch.setattr(gpu, "gpu_test", partial(gpu_deadline.gpu_test, leave=leave))
    monkeypatch.setattr(gpu_tests, "done", lambda *_: None)  # a process that has ended removes nothing

    for _ in range(2):
        left.clear()
        gpu.use_gpu(tmp_path / "code", 1 << 20, seconds=0.05)

    assert statuses == 2 * [gpu_deadline.EXIT_NO_END]
    assert gpu_tests.last(tmp_path / "code", gpu.PART).why == "the test of machine code did not end within 0.05 s"
    use_backend(unused)
    assert gpu.use_gpu(tmp_path / "code", 1 << 20) is None


def test_a_worker_without_machine_code_for_its_gpu_compiles_none(cupy):
    settings = Settings(compile="always").model_dump(mode="json")

    assert machine_for(WorkerState("w", "cuda", cupy, settings, going())) == "never"
