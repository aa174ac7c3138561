"""Names of other libraries lead to the ops that do the same; an unknown name gets a suggestion or a plain answer."""

from __future__ import annotations

import pytest

import core.compiler.compile
import core.wire  # noqa: F401  (declares the constructs)
from core.ir.errors import InvalidProgram
from core.ir.registry import CONSTRUCTS, REGISTRY
from core.ir.suggest import plain
from core.ops.other_names import ABSENT, OTHER_NAMES, RECIPES, suggestion, suggestions
from core.wire import read

OPS = REGISTRY | CONSTRUCTS
LISTED = [(each, (op,)) for names, op in OTHER_NAMES.items() for each in names.split()]
LISTED += [(each, ops) for table in (RECIPES, ABSENT) for names, (ops, _) in table.items() for each in names.split()]


def test_every_listed_name_leads_to_ops_that_exist():
    assert [(name, op) for name, ops in LISTED for op in ops if op not in OPS] == []
    assert all(suggestions(name) == list(ops) for name, ops in LISTED), [
        (name, suggestions(name), ops) for name, ops in LISTED if suggestions(name) != list(ops)
    ]


def test_no_listed_name_hides_an_op_and_none_is_listed_twice():
    names = [plain(name) for name, _ in LISTED]
    own = {plain(op) for op in OPS}

    assert sorted(name for name in names if name in own) == []
    assert sorted({name for name in names if names.count(name) > 1}) == []


@pytest.mark.parametrize(
    "spelt", [str.upper, str.title, lambda op: op.replace("_", ""), lambda op: op.replace("_", "-")]
)
def test_every_op_is_found_without_case_and_separators(spelt):
    wrong = {op: suggestions(spelt(op)) for op in OPS if plain(op) not in [plain(o) for o in suggestions(spelt(op))]}

    assert wrong == {}


SPELLINGS = {
    # torch
    "BatchNorm2d": "batch_norm", "nn.LayerNorm": "layer_norm", "torch.clamp": "clip", "Upsample": "interpolate",
    "F.interpolate": "interpolate", "CrossEntropyLoss": "cross_entropy", "MSELoss": "mse_loss", "L1Loss": "l1_loss",
    "nn.Conv2d": "conv2d", "ConvTranspose2d": "conv2d_transpose", "MaxPool2d": "max_pool2d",
    "AvgPool1d": "avg_pool1d", "AdaptiveAvgPool2d": "adaptive_avg_pool2d", "aten::addmm": "addmm",
    "torch.linalg.inv": "inverse", "torch.cat": "concat", "masked_fill_": "masked_fill", "LeakyReLU": "leaky_relu",
    "BCEWithLogitsLoss": "sigmoid_cross_entropy_with_logits", "KLDivLoss": "kldiv_loss", "Softmax2d": "softmax",
    # jax
    "jnp.concatenate": "concat", "jax.lax.scan": "scan", "jax.nn.one_hot": "one_hot", "lax.cond": "if_else",
    "jax.lax.while_loop": "while", "jnp.linalg.det": "det", "jnp.expand_dims": "unsqueeze",
    # onnx
    "Gemm": "addmm", "ReduceSum": "reduce_sum", "GlobalAveragePool": "global_avg_pool", "LSTM": "lstm",
    "InstanceNormalization": "instance_norm", "TopK": "topk", "ScatterND": "scatter_nd", "ArgMax": "argmax",
    # keras
    "MaxPooling2D": "max_pool2d", "Embedding": "embedding", "UpSampling2D": "interpolate",
    "keras.layers.BatchNormalization": "batch_norm", "mean_squared_error": "mse_loss", "GRU": "gru",
    # paddle
    "paddle.nn.functional.softmax_with_cross_entropy": "softmax_with_cross_entropy",
    "elementwise_add": "elementwise_add",
    "lookup_table_v2": "lookup_table", "warpctc": "ctc_loss", "fill_any_like": "full_like",
    # misspelt
    "matmull": "matmul", "squar": "square", "sofmax": "softmax", "batchnrm": "batch_norm", "reduce_sums": "reduce_sum",
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_spelling_of_another_library_finds_the_op(name):
    assert SPELLINGS[name] in suggestions(name)[:3]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("linear", "multiply with matmul, then add"),
        ("nn.Linear", "multiply with matmul"),
        ("Dense", "multiply with matmul"),
        ("MultiheadAttention", "scaled_dot_product_attention"),
        ("eigvals", "there are no eigenvalues of general matrices"),
        ("jnp.fft.fft2", "transform one after another with fft"),
        ("qwxyz", None),
        ("x" * 10_000, None),
    ],
)
def test_a_name_without_an_op_gets_a_plain_answer(name, words):
    found = suggestion(name)

    assert found is None if words is None else words in (found or "")


def refused(document: dict) -> dict[str, str | None]:
    """Pointer -> suggestion."""
    with pytest.raises(InvalidProgram) as error:
        read(document)
    return {problem.pointer: problem.suggestion for problem in error.value.problems}


def program(*ops: dict, **more: object) -> dict:
    variables = [{"name": "hidden", "dtype": "float32", "shape": [2], "role": "feed"}]
    return {"blocks": [{"vars": variables, "ops": list(ops)}], **more}


def test_wrong_names_in_a_program_get_suggestions():
    relu = {"type": "relu", "inputs": {"x": ["hidden"]}, "outputs": {"out": ["activated"]}}
    inner = {"blocks": [{"vars": [{"name": "a", "dtype": "float32", "shape": [2], "role": "feed"}], "ops": []}]}
    found = refused(
        program(
            {**relu, "type": "batchnorm"},
            relu,
            {"type": "tanh", "inputs": {"x": ["hiden"]}, "outputs": {"out": ["b"]}},
            {"type": "tanh", "inputs": {"x": ["activted"]}, "outputs": {"out": ["c"]}},
            {"type": "softmax", "inputs": {"x": ["hidden"]}, "outputs": {"out": ["d"]}, "attrs": {"axes": 0}},
            {"type": "call", "inputs": {"x": ["hidden"]}, "outputs": {"out": ["e"]}, "attrs": {"function": "doubel"}},
            functions={"double": {"program": inner, "results": ["a"]}},
        )
    )

    assert found == {
        "/blocks/0/ops/0": "did you mean batch_norm?",
        "/blocks/0/ops/2/inputs/x/0": "did you mean hidden?",
        "/blocks/0/ops/3/inputs/x/0": "did you mean activated?",
        "/blocks/0/ops/4/attrs/axes": "did you mean axis?",
        "/blocks/0/ops/5/attrs/function": "did you mean double?",
    }


def test_a_misspelt_member_of_a_program_gets_a_suggestion():
    op = {"type": "relu", "input": {"x": ["hidden"]}, "outputs": {"out": ["a"]}}

    assert refused(program(op))["/blocks/0/ops/0/input"] == "did you mean inputs?"
