"""The mistakes that people make first: each error says what to write in its place."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from backpass_client.arithmetic import Arithmetic
from backpass_client.builder.inference.pairs import PAIRED
from backpass_client.builder.signatures import signature_of
from backpass_client.lists import chosen_gradients, name_list
from backpass_client.op_table import op_table
from backpass_client.tensorfile import pack
from backpass_client.text import NamedArrays

ROWS, NUMBERS, COLUMN = bp.f32["batch", 3], bp.f32["batch"], bp.f32["batch", 1]
WIDE, WHOLE = bp.f64["batch", 3], bp.i64["batch", 3]


def set_item(x=ROWS):
    x[0] = 1.0
    return x.sum()


CASES: dict[str, tuple[Callable[..., Any], type[Exception], str]] = {
    "a float32 parameter in float64": (
        lambda x=WIDE: x @ bp.parameter("w", [3, 2]),
        bp.InvalidOp,
        "or declare the parameter 'w' with dtype='float64'",
    ),
    "a float32 state in float64": (
        lambda x=WIDE: x * bp.state("s", [3]),
        bp.InvalidOp,
        "or declare the state 's' with dtype='float64'",
    ),
    "an array of NumPy's float64": (
        lambda x=ROWS: x + np.ones(3),
        bp.InvalidOp,
        "or give the array as y.astype('float32')",
    ),
    "an array on the left": (
        lambda x=ROWS: np.ones((2, 3)) @ x.T,
        bp.InvalidOp,
        "or give the array as x.astype('float32')",
    ),
    "an array of integers": (lambda x=ROWS: x * np.arange(3), bp.InvalidOp, "or give the array as y.astype('float32')"),
    "two feeds of other dtypes": (
        lambda x=ROWS, y=WIDE: x + y,
        bp.InvalidOp,
        r"dtypes differ: float32 and float64; bp.cast(x, dtype=...) converts",
    ),
    "labels that are floats": (
        lambda x=ROWS, y=NUMBERS: bp.softmax_with_cross_entropy(x, y),
        bp.InvalidOp,
        "needs integers, not float32[batch]; bp.cast(x, dtype='int64') converts",
    ),
    "labels in rows of zeros and a one": (
        lambda x=ROWS, y=ROWS: bp.softmax_with_cross_entropy(x, y),
        bp.InvalidOp,
        "labels must be integers, not float32[batch, 3]: soft_label=True takes probabilities of classes",
    ),
    "range of an open size": (
        lambda x=ROWS: sum(x[i].sum() for i in range(x.shape[0])),
        bp.InvalidOp,
        "'batch' is the name of an open size, which has a number in each step only: bp.dynamic_range",
    ),
    "zeros of an open shape": (lambda x=ROWS: x + np.zeros(x.shape), bp.InvalidOp, "bp.zeros_like(x) has the shape"),
    "assignment to an element": (set_item, TypeError, "a value does not change in place: x = bp.where(mask, value, x)"),
    "dim of PyTorch": (
        lambda x=ROWS: x.sum(dim=1),
        TypeError,
        "sum has no argument 'dim': write x.sum(axis, keepdims)",
    ),
    "keepdim": (lambda x=ROWS: x.mean(1, keepdim=True), TypeError, "mean has no argument 'keepdim': write x.mean(axis"),
    "two axes of three": (lambda x=bp.f32[2, 3, 4]: x.transpose(-1, -2), bp.InvalidOp, "name each axis once"),
    "an array of symbols": (lambda x=ROWS: np.array([x, x]), TypeError, "bp.stack and bp.concat join symbols"),
    "a format of numbers": (
        lambda x=ROWS: f"{x.sum():.3f}",
        TypeError,
        "is a symbol of a program and has no value yet",
    ),
    "sizes of the input of a layer": (
        lambda x=ROWS: bp.nn.Linear(3, 4)(x),
        TypeError,
        "too many positional arguments; a layer takes the sizes of its input from its input",
    ),
    "in_features": (
        lambda x=ROWS: bp.nn.Linear(in_features=3, out_features=4)(x),
        TypeError,
        "a layer takes the sizes of its input from its input",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_first_mistake_says_what_to_write(case: str):
    f, error, text = CASES[case]
    with pytest.raises(error) as caught:
        bp.program(f)
    assert text in str(caught.value)


def test_the_advice_of_a_dtype_is_right():
    cured = [
        lambda x=WIDE: x @ bp.parameter("w", [3, 2], dtype="float64"),
        lambda x=ROWS: x + np.ones(3).astype("float32"),
        lambda x=ROWS, y=NUMBERS: bp.softmax_with_cross_entropy(x, bp.cast(y, dtype="int64")),
        lambda x=ROWS, y=ROWS: bp.softmax_with_cross_entropy(x, y, soft_label=True),
        lambda x=ROWS: bp.nn.Linear(4)(x),
        lambda x=ROWS: f"{x} {x!r:>9}" and x,
    ]
    assert all(bp.program(f).outputs for f in cured)


LAYERS = [name for name in bp.nn.__all__ if name != "Layer"]


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_explains_an_argument_that_it_lacks(name: str):
    with pytest.raises(TypeError, match=rf"{name}\(.*a layer takes the sizes of its input from its input") as caught:
        getattr(bp.nn, name)(*range(9))
    assert "name" in str(caught.value)  # its signature


# --- losses of pairs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(PAIRED))
def test_a_loss_of_each_prediction_with_each_label_warns(loss: str):
    slots = [slot for slot in signature_of(loss).slots if slot not in signature_of(loss).optional]
    more = dict.fromkeys(slots[2:], COLUMN)

    def compared(x: bp.Type, y: bp.Type) -> list[str]:
        with warnings.catch_warnings(record=True) as caught, bp.Builder("test"):
            warnings.simplefilter("always")
            others = [bp.feed(slot, type) for slot, type in more.items()]
            bp.function(loss)(bp.feed("x", x), bp.feed("y", y), *others)
        return [str(each.message) for each in caught]

    (message,) = compared(COLUMN, NUMBERS)
    assert "float32[batch, batch]" in message and "test_first_mistakes.py" in message and loss in message
    assert compared(COLUMN, COLUMN) == compared(ROWS, bp.f32[3]) == compared(ROWS, COLUMN) == []
    assert len(compared(NUMBERS, COLUMN)) == 1


def test_every_loss_whose_operands_broadcast_is_known_or_has_another_meaning():
    """A loss of x and a label of its shape, by the names of its slots."""
    others = {"cos_sim", "rank_loss", "margin_rank_loss", "cosine_embedding_loss", "npair_loss", "triplet_margin_loss"}
    broadcast = {
        name
        for name in op_table()["ops"]
        if ("loss" in name or name.endswith("with_logits") or name == "square_error_cost")
        and name not in others
        and _broadcasts(name)
    }
    assert broadcast <= PAIRED


def _broadcasts(name: str) -> bool:
    with bp.Builder("test"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        slots = [slot for slot in signature_of(name).slots if slot not in signature_of(name).optional]
        try:
            found = bp.function(name)(
                *[bp.feed(slot, bp.f32[3, 1] if i == 0 else bp.f32[3]) for i, slot in enumerate(slots)],
                **({"reduction": "none"} if "reduction" in op_table()["ops"][name].get("attributes", {}) else {}),
            )
        except (bp.BackpassError, TypeError):
            return False
    return not isinstance(found, tuple) and found.type.shape == (3, 3)


def test_a_tape_refuses_assignments_as_a_program_does():
    with pytest.raises(TypeError, match="does not change in place"):
        Arithmetic.__setitem__(object.__new__(bp.Variable), 0, 1.0)


# --- values that are no arrays of numbers ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array(["cat", "dog"]), "texts are no numbers; number them, such as np.unique(labels, return_inverse=True)"),
        ([b"a"], "texts are no numbers"),
        (None, "the value of 'y' is None: leave out a variable that has no value"),
        ([[1, 2], [3]], "the value of 'y' is no array: setting an array element with a sequence"),
        (np.array(["2020-01-01"], "datetime64[D]"), "times are no numbers"),
        (np.ones(2, complex), "complex numbers are not supported"),
        (np.array([object()]), "its elements are Python objects"),
    ],
)
def test_the_error_of_a_wrong_value_names_its_variable_and_the_cure(value: Any, text: str):
    with pytest.raises(bp.BackpassError) as caught:
        pack({"y": value}, {})
    assert "'y'" in str(caught.value) and text in str(caught.value)


# --- results and names -------------------------------------------------------------------------------------------


def test_a_result_leads_to_the_members_of_its_answer():
    step = bp.Step(None, {}, {}, {"learning_rate": 0.1, "step": 3})

    with pytest.raises(
        AttributeError, match=r"'Step' object has no attribute 'learning_rate'; see said\['learning_rate"
    ):
        step.learning_rate  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean fetched"):
        bp.Gradients(None, {}, {}, {}).fetchd  # noqa: B018


def test_a_name_without_an_array_lists_those_that_there_are():
    arrays = NamedArrays({"w": np.ones(2), "b": np.ones(1)})

    with pytest.raises(KeyError, match="there is no 'v'; there are 'w', 'b'"):
        arrays["v"]
    with pytest.raises(KeyError, match="there is no 'w'; there are no arrays"):
        NamedArrays()["w"]
    assert arrays.get("v") is None and "v" not in arrays


@pytest.mark.parametrize(
    ("given", "sent"),
    [("w", ["w"]), ("all", "all"), ("none", "none"), ("norms", "norms"), (["all"], ["all"]), (("w", "b"), ["w", "b"])],
)
def test_a_name_of_one_gradient_is_a_list_of_it(given: Any, sent: Any):
    assert chosen_gradients(given) == sent


@pytest.mark.parametrize("names", [[bp.f32[2]], [1], [None]])
def test_a_program_refuses_names_other_than_text(names: Any):
    with pytest.raises(TypeError, match="names of variables are texts, not "):
        name_list(names)


@pytest.mark.parametrize("data", ["a", None, ["a", "b"], np.ones(2, complex)])
def test_a_variable_that_holds_no_numbers_is_refused(data: Any):
    with pytest.raises(TypeError, match="a variable holds an array of numbers, not "):
        bp.Variable(data)


@pytest.mark.parametrize(("method", "text"), [("float", "bp.cast"), ("to", "bp.cast"), ("numpy", "see value")])
def test_a_method_that_converts_leads_to_the_op(method: str, text: str):
    with pytest.raises(AttributeError, match=text):
        getattr(bp.Variable([1.0]), method)


@pytest.mark.parametrize("name", ["step", "fit", "run", "gradients"])
def test_a_program_without_a_service_says_where_it_computes(name: str):
    built = bp.program(lambda x=ROWS: x.sum())

    with pytest.raises(AttributeError, match=r"register it, service.programs.create\(program\)"):
        getattr(built, name)
