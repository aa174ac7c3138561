"""Whole models: gradients agree with differences, and with PyTorch for the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from tests.backpass_client.builder.models import gpt, sentiment, vae
from tests.backpass_client.builder.running import assert_gradients_agree_with_differences, first_values, gradients, run

RANDOM = np.random.default_rng(3)
TOKENS = RANDOM.integers(0, 11, (2, 6))
FEEDS: dict[str, dict[str, Any]] = {
    "gpt": {"tokens": TOKENS[:, :-1], "next_tokens": TOKENS[:, 1:]},
    "sentiment": {"words": RANDOM.integers(0, 12, (3, 4)), "lengths": [4, 1, 2], "label": [0, 1, 1]},
    "vae": {"x": RANDOM.integers(0, 2, (4, 6)), "noise": RANDOM.normal(size=(4, 2))},
}
MODELS = {f.__name__: bp.program(f) for f in (gpt, sentiment, vae)}


def values_of(name: str) -> dict[str, Any]:
    """Feeds, and random parameters without zeros, so that every path has a gradient."""
    random = np.random.default_rng(5)
    drawn = {n: v + 0.1 * random.normal(size=v.shape) for n, v in first_values(MODELS[name]).items()}
    return {**drawn, **FEEDS[name]}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_a_model_agree_with_differences(name: str):
    assert_gradients_agree_with_differences(MODELS[name], values_of(name), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_of_a_model_has_a_first_value_and_a_gradient(name: str):
    built = MODELS[name]

    assert all(np.isfinite(v).all() for v in first_values(built).values())
    assert gradients(built, values_of(name))[1].keys() == built.parameters.keys()


def test_names_of_a_transformer_are_those_of_its_layers():
    block = [name for name in MODELS["gpt"].parameters if name.startswith("block_0.")]

    assert block == [
        "block_0.norm.scale", "block_0.norm.bias",
        "block_0.attention.query.weight", "block_0.attention.query.bias",
        "block_0.attention.key.weight", "block_0.attention.key.bias",
        "block_0.attention.value.weight", "block_0.attention.value.bias",
        "block_0.attention.out.weight", "block_0.attention.out.bias",
        "block_0.norm_1.scale", "block_0.norm_1.bias",
        "block_0.grow.weight", "block_0.grow.bias", "block_0.shrink.weight", "block_0.shrink.bias",
    ]  # fmt: skip


def test_a_gpt_never_sees_later_tokens():
    values = values_of("gpt")
    changed = {**values, "tokens": np.where(np.arange(5) == 3, (values["tokens"] + 1) % 11, values["tokens"])}

    before, after = (run(MODELS["gpt"], **each)["logits"] for each in (values, changed))

    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (before[:, 3:] != after[:, 3:]).any(axis=-1).all()


# --- PyTorch -----------------------------------------------------------------------------------------------------


def torch_gpt(torch: Any, p: dict[str, Any], feeds: dict[str, Any]) -> Any:
    functional = torch.nn.functional
    tokens, following = torch.tensor(feeds["tokens"]), torch.tensor(feeds["next_tokens"])
    h = p["tokens.weight"][tokens] + p["positions"][: tokens.shape[1]]
    for i in range(2):
        at = f"block_{i}."

        def norm(x: Any, name: str, at: str = at) -> Any:
            return functional.layer_norm(x, (8,), p[f"{at}{name}.scale"], p[f"{at}{name}.bias"])

        def linear(x: Any, name: str, at: str = at) -> Any:
            return x @ p[f"{at}{name}.weight"] + p[f"{at}{name}.bias"]

        x = norm(h, "norm")
        q, k, v = (linear(x, f"attention.{n}").unflatten(2, (2, 4)).transpose(1, 2) for n in ("query", "key", "value"))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(seen.transpose(1, 2).flatten(2), "attention.out")
        h = h + linear(functional.gelu(linear(norm(h, "norm_1"), "grow")), "shrink")
    h = functional.layer_norm(h, (8,), p["last_norm.scale"], p["last_norm.bias"])
    return functional.cross_entropy((h @ p["tokens.weight"].T).flatten(0, 1), following.flatten())


def torch_sentiment(torch: Any, p: dict[str, Any], feeds: dict[str, Any]) -> Any:
    lstm = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, dtype=torch.float64)
    theirs = {"weight_x": "weight_ih_l", "weight_h": "weight_hh_l", "bias_x": "bias_ih_l", "bias_h": "bias_hh_l"}
    weights = {}
    for name in p:
        if name.startswith("lstm."):
            kind, which, place = name.removeprefix("lstm.").split("_", 2)
            weights[theirs[f"{kind}_{which}"] + place] = p[name]
    x = p["words_table.weight"][torch.tensor(feeds["words"])]
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(feeds["lengths"]), True, False)
    _, (h, _) = torch.func.functional_call(lstm, weights, (packed,))
    logits = torch.cat([h[-2], h[-1]], 1) @ p["head.weight"] + p["head.bias"]
    return torch.nn.functional.cross_entropy(logits, torch.tensor(feeds["label"]))


def torch_vae(torch: Any, p: dict[str, Any], feeds: dict[str, Any]) -> Any:
    x, noise = (torch.tensor(np.asarray(feeds[n], "float64")) for n in ("x", "noise"))

    def linear(x: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    h = torch.tanh(linear(x, "encoder.linear"))
    mean, log_variance = linear(h, "encoder.mean"), linear(h, "encoder.log_variance")
    z = mean + torch.exp(log_variance / 2) * noise
    logits = linear(torch.tanh(linear(z, "decoder.linear")), "decoder.out")
    bits = torch.nn.functional.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
    return (bits + (torch.exp(log_variance) + mean**2 - 1 - log_variance).sum(1) / 2).mean()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "f"), [("gpt", torch_gpt), ("sentiment", torch_sentiment), ("vae", torch_vae)])
def test_a_model_has_the_loss_and_gradients_of_pytorch(name: str, f: Any):
    torch = pytest.importorskip("torch")
    values = values_of(name)
    weights = {n: torch.tensor(values[n], requires_grad=True) for n in MODELS[name].parameters}

    expected = f(torch, weights, FEEDS[name])
    expected.backward()
    loss, found = gradients(MODELS[name], values)

    assert loss == pytest.approx(expected.item(), rel=1e-10)
    for n, gradient in found.items():
        np.testing.assert_allclose(gradient, weights[n].grad.numpy(), rtol=1e-8, atol=1e-12, err_msg=n)
