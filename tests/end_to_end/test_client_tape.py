"""The tape of the Python client with a real service: arithmetic, ops by name, gradients, and released memory."""

from __future__ import annotations

import base64
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from backpass_client import Service, Variable
from tests.programs import identical

random = np.random.default_rng(0)
A, B = random.uniform(0.5, 2, (3, 4)), random.uniform(0.5, 2, (3, 4))


@pytest.fixture(params=["immediate", "lazy"])
def tape(request: pytest.FixtureRequest, service: Service) -> Iterator[bp.Tape]:
    with bp.Tape(service, request.param) as tape:
        yield tape


# Arithmetic


ARITHMETIC: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: a - b,
    lambda a, b: a * b,
    lambda a, b: a / b,
    lambda a, b: a**b,
    lambda a, b: a @ b.T,
    lambda a, b: -a,
    lambda a, b: a + 2,
    lambda a, b: 2 + a,
    lambda a, b: a - 2.5,
    lambda a, b: 2.5 - a,
    lambda a, b: a * 3,
    lambda a, b: 3 * a,
    lambda a, b: a / 3,
    lambda a, b: 3 / a,
    lambda a, b: a**2,
    lambda a, b: a**1.5,
    lambda a, b: 1.5**a,
    lambda a, b: B + a,
    lambda a, b: B - a,
    lambda a, b: B / a,
    lambda a, b: B.T @ a,
    lambda a, b: np.float64(2) * a,
    lambda a, b: a // 0.3 + a % b,
    lambda a, b: 5 // a + B % a,
    lambda a, b: (a < b) ^ ~(a < B),
    lambda a, b: (A < B) & (a > 1) | (b > 1),
    lambda a, b: a * np.int64(2) + np.float32(0.5),
    lambda a, b: a * np.inf,
    lambda a, b: a - np.inf,
    lambda a, b: np.nan * a,
    lambda a, b: abs(a - 1),
    lambda a, b: a < b,
    lambda a, b: a <= 1.0,
    lambda a, b: a < 1,
    lambda a, b: a >= b,
    lambda a, b: a.sum(),
    lambda a, b: a.sum(axis=1),
    lambda a, b: a.mean(axis=(0, 1), keepdims=True),
    lambda a, b: a.max(0),
    lambda a, b: a.reshape(2, 6),
    lambda a, b: a.reshape((4, -1)),
    lambda a, b: a.transpose(),
    lambda a, b: a.transpose(1, 0) @ b,
]
PARTS: list[Any] = [
    0, -1, (1, 2), (slice(None), 2), slice(1, 3), slice(None, None, -1), (slice(2, 0, -1), slice(None, None, 2)),
    (..., 1), None, (slice(None), None, -2), [2, 0, 2], np.array([[1, 1], [0, 2]]), ..., [], (1, None, [-1, 0]),
]  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("f", ARITHMETIC)
def test_arithmetic_equals_numpy(tape, f):
    a, b = Variable(A), Variable(B)
    np.testing.assert_allclose(f(a, b).value, f(A, B), rtol=1e-14)


def test_functions_of_numpy_record_no_op(tape):
    a = Variable(A)
    with pytest.raises(TypeError, match=r"np.exp computes with arrays and records no op; write bp.exp$"):
        np.exp(a)
    with pytest.raises(TypeError, match=r"np.add .*; write bp.add$"):
        np.add(bp.tanh(a), A)


def test_an_attribute_of_several_results_names_the_op(tape):
    pooled = bp.max_pool2d(Variable(A.reshape(1, 1, 3, 4)), kernel_size=[2, 2])
    with pytest.raises(AttributeError, match=r"max_pool2d returns 2 results; out, index = bp.max_pool2d\(...\)$"):
        pooled.sum()
    with pytest.raises(AttributeError, match=r"split returns 2 results; take one of them$"):
        bp.split(Variable(A), num=2, axis=1).backward()


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_indexing_equals_numpy_and_has_gradients(tape, part):
    a = Variable(A)
    found = a[part]
    found.backward(np.ones_like(A[part]))

    np.testing.assert_array_equal(found.value, A[part])
    wanted = np.zeros_like(A)
    np.add.at(wanted, part if part is not None else ..., 1.0)
    np.testing.assert_array_equal(a.grad, wanted)


def test_an_invalid_index_is_refused(tape):
    a = Variable(A)
    for wrong in ("x", 1.5, (True, 0), A > 1):
        with pytest.raises(TypeError):
            a[wrong]
    with pytest.raises(bp.Refused, match=r"op \d \(gather\): index 7 is out of range"):
        a[7].value  # noqa: B018
    for far in (-4, [-4, 0], (0, -5), (slice(None), [[0, -5]])):
        for x in (a, bp.tanh(a)):
            with pytest.raises(IndexError, match=r"position -\d is out of range for axis \d of size \d"):
                x[far]
    with pytest.raises(IndexError, match="too many indices: 3 for an array of rank 2"):
        a[:, 0, :]
    with pytest.raises((IndexError, bp.Refused), match=r"too many indices|axis 2 is out of range"):
        bp.tanh(a)[0, :, :].value  # noqa: B018
    with pytest.raises(ValueError, match="step of a slice"):
        a[::0]


def test_an_expression_indexes_one_axis_among_others(tape):
    x, rows = np.arange(24.0).reshape(2, 3, 4), np.array([2, 0])
    a, chosen = Variable(x), Variable(rows, requires_grad=False)

    np.testing.assert_array_equal(a[:, chosen].value, x[:, rows])
    np.testing.assert_array_equal(a[1, :, chosen].value, x[1, :, rows])
    np.testing.assert_array_equal(a[:, np.array([[-1]]), ..., 1].value, x[:, np.array([[-1]]), ..., 1])


def test_integers_are_subtracted_from_unsigned_integers(tape):
    x = np.array([1, 200, 3], "uint8")
    a = Variable(x, requires_grad=False)

    for b in (a, bp.assign(a)):
        np.testing.assert_array_equal((b - 2).value, x - 2)
        np.testing.assert_array_equal((250 - b).value, 250 - x)


def test_an_integer_too_large_to_be_exact_is_refused(tape):
    a = Variable([1, 2], requires_grad=False)
    assert (a + 2**52).value.tolist() == [1 + 2**52, 2 + 2**52]
    with pytest.raises(bp.Refused, match="float64 holds exactly"):
        (a + (2**53 + 1)).value  # noqa: B018


def test_an_expression_has_the_shape_and_dtype_of_its_value(tape):
    a = Variable(A)
    b = bp.cast(a[0], dtype="float32")
    assert (b.shape, b.dtype, b.ndim, len(b)) == ((4,), np.float32, 1, 4)
    assert [float(x) for x in b] == A[0].astype("float32").tolist()
    assert np.asarray(b).tolist() == b.value.tolist()
    assert bool(b.sum() * 0) is False
    with pytest.raises(TypeError, match="no length"):
        len(b.sum())
    assert "not computed yet" in repr(a * 2) or tape.mode == "immediate"
    assert repr(Variable([1.0])) == "Variable(array([1.]))"


def test_functions_accept_named_slots_lists_and_numbers(tape):
    a, b = Variable(A), Variable(B)
    np.testing.assert_array_equal(bp.concat([a, b], axis=1).value, np.concatenate([A, B], 1))
    np.testing.assert_array_equal(bp.concat(a, B, axis=0).value, np.concatenate([A, B]))
    np.testing.assert_array_equal(bp.matmul(y=b, x=a, transpose_y=True).value, A @ B.T)
    np.testing.assert_array_equal(bp.maximum(a, 1.0).value, np.maximum(A, 1))
    one, two = bp.split(a, num=2, axis=1)
    np.testing.assert_array_equal(two.value, A[:, 2:])
    np.testing.assert_array_equal(one.value, A[:, :2])
    _, index = bp.topk(a, k=1)
    np.testing.assert_array_equal(index.value[:, 0], A.argmax(1))
    np.testing.assert_allclose(bp.layer_norm(a, bias=np.ones(4)).value.mean(1), 1, rtol=1e-6)
    for wrong in (
        lambda: bp.tanh(a, b),
        lambda: bp.tanh(a, x=b),
        lambda: bp.tanh(a, axis=1),
    ):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(bp.Refused, match="no op has this name") as caught:
        bp.function("tahn")(a)
    assert "or tanh" in str(caught.value)
    assert bp.norm(a, p=np.inf).item() == A.max()
    with pytest.raises(bp.Refused, match="inner blocks"):
        bp.function("while")(a).value  # noqa: B018


def test_a_number_has_no_axes_unless_the_op_is_elementwise(tape):
    a = Variable(A)
    mask = bp.greater_than(a, 1.0)
    np.testing.assert_array_equal(bp.where(mask, a, 0.5).value, np.where(A > 1, A, 0.5))
    np.testing.assert_allclose(bp.mse_loss(bp.tanh(a), 0.5).value, ((np.tanh(A) - 0.5) ** 2).mean())
    np.testing.assert_array_equal(bp.masked_fill(a, mask, 0).value, np.where(A > 1, 0, A))
    np.testing.assert_array_equal(bp.gather(bp.assign(a), 2).value, A[2])
    with pytest.raises(TypeError, match=r"takes integers, not 0\.5"):
        bp.gather(a, 0.5)
    with pytest.raises(bp.Refused, match="matmul needs at least one axis on each side"):
        (a @ 2).value  # noqa: B018
    with pytest.raises(bp.Refused, match="concat needs equal ranks"):
        bp.concat([a, 2.0]).value  # noqa: B018


def test_a_list_of_numbers_is_a_constant_of_the_dtype_of_the_operand(tape):
    a = Variable(A.astype("float32"))
    for x in (a, bp.assign(a)):
        found = x * [1, 2, 3, 4]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found.value, a.data * np.array([1, 2, 3, 4], "float32"))
    np.testing.assert_array_equal(bp.gather(a, [0, 2]).value, a.data[[0, 2]])
    with pytest.raises(TypeError, match="'y' of mul is one array, not a list of them"):
        bp.mul(a, [a, a])
    with pytest.raises(TypeError, match=r"0\.5 is not a value of dtype int64"):
        Variable([1, 2], requires_grad=False) * [1, 0.5]


def test_python_values_that_are_no_numbers_are_refused(tape):
    a = Variable(A)
    for wrong in (1j, "x", {}, np.complex64(1)):
        with pytest.raises(TypeError, match=r"cannot use a .* as an array"):
            a * wrong
    with pytest.raises(TypeError, match=r"write bp.equal\(x, 1\), which compares values"):
        bp.where(a == 1, a, -a)
    b = bp.tanh(a)
    for wrong in (a == b, a != b):
        with pytest.raises(TypeError, match=r"is the Python value .*: `==` and `!=` compare identities"):
            bp.where(wrong, a, -a)
    assert bp.fill_constant(value=True, dtype="bool").value.tolist() is True


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_every_op_of_the_catalogue_is_a_function(service, part):
    """Each op, called with the inputs of its examples, returns their outputs."""
    called = 0
    with bp.Tape(service) as tape:
        for type in service.ops()[part::4]:
            spec = service.op(type)
            if spec["kind"] in ("control", "construct"):
                continue
            for example in spec["examples"]:
                inputs, outputs = ([_array(x) for x in example[side]] for side in ("inputs", "outputs"))
                if any(isinstance(x, list) or (isinstance(x, np.ndarray) and x.dtype == object) for x in inputs):
                    continue  # a list of arrays cannot be an argument, only the output of an op
                found = bp.function(type)(*inputs, **example["attributes"])
                called += 1
                for x, wanted in zip(found if isinstance(found, tuple) else (found,), outputs, strict=False):
                    if not isinstance(wanted, list):
                        np.testing.assert_allclose(
                            np.asarray(x.value, "float64"), np.asarray(wanted, "float64"), rtol=1e-5, atol=1e-6
                        )
            tape.renew()
    assert called > 75


def _array(shown: Any) -> Any:
    if isinstance(shown, list):
        return [_array(each) for each in shown]
    if shown is None or shown["dtype"] == "object":
        return None
    if "b64" in shown:
        return np.frombuffer(base64.b64decode(shown["b64"]), shown["dtype"]).reshape(shown["shape"])
    return np.array(shown["data"], shown["dtype"]).reshape(shown["shape"])


# Variables


def test_a_variable_is_sent_again_only_after_a_change(tape):
    w = Variable(A, name="w")
    assert (w * 1).sum().item() == A.sum()
    first = w.named.text
    (w * 2).value  # noqa: B018
    assert w.named.text == first
    w.data[0, 0] += 1
    assert (w * 1).sum().item() == pytest.approx(A.sum() + 1)
    assert w.named.text != first
    w.data = w.data - 1
    assert (w * 1).value[0, 1] == pytest.approx(A[0, 1] - 1)


def test_a_graph_recorded_before_a_change_still_has_gradients(tape):
    w = Variable([2.0, 3.0])
    before = (w * w).sum()
    before.value  # noqa: B018
    w.data = w.data * 10
    after = w.sum()
    before.backward()
    assert w.grad.tolist() == [4.0, 6.0]
    after.backward()
    assert w.grad.tolist() == [5.0, 7.0]


def test_ops_without_python_references_are_released(tape):
    w = Variable(A)
    for _ in range(20):
        loss = bp.tanh(w * 2).sum()
        loss.backward()
    del loss
    gc.collect()
    w.sum().value  # noqa: B018
    w.sum().value  # noqa: B018
    w.sum().value  # noqa: B018
    assert tape.view()["ops"] <= 5


def test_renewing_repeatedly_uses_constant_memory(tape):
    w = Variable(A)
    for i in range(6):
        tape.renew()
        w.data = w.data + 1
        w.sum().backward()
        if i == 2:
            early = tape.view()["bytes"]
    assert tape.view()["bytes"] == early


def test_a_tape_works_after_refused_ops(tape):
    a, b = Variable(A), Variable(B)
    with pytest.raises(bp.Refused, match="inner sizes"):
        (a @ b).value  # noqa: B018
    lost = None
    with pytest.raises(bp.Refused):
        lost = bp.tanh(b)
        (lost @ b).sum().backward()
    (a * a).sum().backward()
    np.testing.assert_allclose(a.grad, 2 * A)
    assert b.grad is None
    if tape.mode == "lazy":
        for use in (lambda: lost.value, lambda: lost.shape, lambda: lost + 1):
            with pytest.raises(bp.BackpassError, match="never computed"):
                use()


def test_retain_grad_keeps_the_gradient_of_an_intermediate(tape):
    w = Variable([2.0])
    h = (w * w).retain_grad()
    (h * 3).sum().backward()
    assert (h.grad.tolist(), w.grad.tolist()) == ([3.0], [12.0])
    w.zero_grad()
    (h.detach() * w).sum().backward()
    assert w.grad.tolist() == [4.0]


def test_expressions_belong_to_their_tape_and_its_generation(tape, service):
    x = Variable(A).sum()
    x.value  # noqa: B018
    tape.renew()
    with pytest.raises(bp.BackpassError, match="renewed"):
        x + 1
    assert x.value == A.sum()
    y = Variable(A).sum()
    with bp.Tape(service), pytest.raises(bp.BackpassError, match="another tape"):
        bp.add(Variable(A).sum(), y)


def test_an_op_without_a_tape_raises_an_error():
    with pytest.raises(bp.BackpassError, match="with Tape"):
        bp.tanh(Variable(A))


def test_a_refused_op_is_reported_with_its_place(tape):
    a = Variable(A)
    with pytest.raises(bp.Refused) as caught:
        bp.tanh(a)
        (a @ a).value  # noqa: B018
    refusal = caught.value
    assert (refusal.status, refusal.code, refusal.retryable) == (422, "invalid-program", False)
    assert refusal.location is not None and refusal.location["type"] == "matmul"
    assert "inner sizes" in str(refusal) and refusal.problem["request_id"]
    assert bp.tanh(a).value.shape == (3, 4)  # the tape still works


def test_a_program_fetched_from_the_tape_has_the_same_gradients(tape, service):
    w = Variable([1.0, 2.0], name="w")
    loss = bp.tanh(w).sum()
    loss.backward()
    program = bp.Program(service, tape.program())
    found = program.gradients(loss.name, parameters={w.named.text: w.data})
    identical(found.gradients[w.named.text], w.grad)


# Gradients of functions


def test_nested_gradients_of_functions_are_correct(tape):
    assert bp.grad(lambda x: x * bp.grad(lambda y: x + y)(1.0))(1.0) == 1.0
    assert bp.grad(lambda x: bp.grad(lambda y: x * y)(x))(3.0) == 1.0
    assert bp.grad(lambda x: bp.grad(lambda y: y * y * x)(2.0) * x)(3.0) == 24.0
    assert bp.grad(lambda x: x * 0 + 5)(3.0) == 0.0
    assert bp.grad(lambda x: 5.0)(3.0) == 0.0
    assert bp.grad(lambda x: bp.grad(lambda y: x * x)(2.0) + x)(3.0) == 1.0


def test_gradients_with_respect_to_several_arrays_are_correct(tape):
    f = lambda x, y, scale=1.0: (x * y).sum() * scale
    gx, gy = bp.grad(f, (0, 1))(A, B, scale=2.0)
    np.testing.assert_allclose(gx, 2 * B)
    np.testing.assert_allclose(gy, 2 * A)
    value, gradient = bp.value_and_grad(f, 1)(A, B)
    np.testing.assert_allclose([value], [(A * B).sum()])
    np.testing.assert_allclose(gradient, A)
    v = Variable(A)
    outer = bp.grad(lambda x: (x**3).sum())(v)
    assert isinstance(outer, bp.Expression)
    outer.backward(np.ones_like(A))
    np.testing.assert_allclose(v.grad, 6 * A)


def test_the_gradient_of_a_function_changes_no_variable(tape):
    w, x = Variable(A), Variable(B)
    assert bp.grad(lambda s: (w * x).sum() * s)(2.0) == pytest.approx((A * B).sum())
    assert (w.grad, x.grad) == (None, None)


def test_functions_without_a_gradient_raise_an_error(tape):
    f = lambda x, y: (x * y).sum()
    for argnum in (2, -1, (0, -1)):
        with pytest.raises(TypeError, match="positional argument"):
            bp.grad(f, argnum)(A, B)
    with pytest.raises(TypeError, match="positional argument"):
        bp.grad(f)(x=A, y=B)
    for wrong in (lambda x: [x], lambda x: None, lambda x: (x, x)):
        with pytest.raises(TypeError, match="not a scalar"):
            bp.grad(wrong)(A)
    with pytest.raises(bp.Refused, match="one element"):
        bp.grad(lambda x: x * 2)(A)


def test_an_invalid_variable_name_raises_value_error():
    for wrong in ("", "a b", "a?", "1:x", "-x", "x" * 200):
        with pytest.raises(ValueError, match="name"):
            Variable(A, name=wrong)


def test_a_hessian_vector_product_is_correct(tape):
    f = lambda x: (bp.exp(x) * x).sum()
    hvp = bp.grad(lambda x, v: (bp.grad(f)(x) * v).sum())(A, B)
    np.testing.assert_allclose(hvp, np.exp(A) * (A + 2) * B, rtol=1e-12)


def test_jacobians_and_products_with_them_are_correct(tape):
    square = lambda x, scale=1.0: x * x * scale
    value, pushed = bp.jvp(square)(A, B, scale=3.0)
    np.testing.assert_allclose(value, 3 * A * A)
    np.testing.assert_allclose(pushed, 6 * A * B)
    value, pulled = bp.vjp(lambda y, x: square(x) * y, argnum=1)(A, B, A)
    np.testing.assert_allclose(value, A * B * B)
    np.testing.assert_allclose(pulled, 2 * A * A * B)
    v = A.ravel()[:3]
    np.testing.assert_allclose(bp.jacobian(lambda x: x * x.sum())(v), np.diag([v.sum()] * 3) + v[:, None])
    np.testing.assert_allclose(bp.hessian(lambda x: (bp.exp(x) * x[0]).sum())(v), _hessian_of_exponentials(v))
    np.testing.assert_allclose(bp.jacobian(lambda x: x.sum())(v), [1, 1, 1])
    outer = bp.grad(lambda x: (bp.jacobian(lambda z: z**3)(x) ** 2).sum())(v)
    np.testing.assert_allclose(outer, 36 * v**3)
    w = Variable(v)
    recorded = bp.jvp(lambda x: x**3)(w, v)[1]
    recorded.backward(np.ones(3))
    np.testing.assert_allclose(w.grad, 6 * v * v)


def _hessian_of_exponentials(v):
    """Of ``sum(exp(v)) * v[0]``."""
    expected = np.diag(np.exp(v) * v[0])
    expected[0] += np.exp(v)
    expected[:, 0] += np.exp(v)
    return expected
