"""The recipes of sequences and of generative models: small ones learn, and their gradients equal those of PyTorch."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from examples import digits
from examples.demo import running_service
from examples.recipes import gan, gpt, lstm, vae
from tests.beside_torch.installed import MISSING, F, torch
from tests.paths import ROOT
from tests.ports import free_port

beside_torch = pytest.mark.skipif(torch is None, reason=MISSING)
RECIPES = {  # name -> a figure of its last line, and the bound that only a trained model reaches
    "lstm": (r"-> ([\d.]+)$", lambda accuracy: accuracy > 0.9),
    "gpt": (r"-> ([\d.]+) bits", lambda bits: bits < 3),
    "vae": (r"-> ([\d.]+)$", lambda loss: loss < 26),
    "gan": (r"(\d+)% of the points", lambda percent: percent > 70),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    # small models run sooner as they are
    with running_service(device="cpu", workers="1", port=str(free_port()), compile="never") as address:
        yield address


# --- training ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_small_lstm_learns_to_tell_code_from_english(service: bp.Service) -> None:
    reached = lstm.run(service, steps=60, hidden=8)

    assert reached["before"] < 0.65
    assert reached["after"] > 0.75


def test_a_small_gpt_learns_which_characters_follow(service: bp.Service) -> None:
    reached = gpt.run(service, steps=30, batch_size=4, layers=1, features=16, length=6)

    assert reached["before"] > 6  # log2 of about a hundred characters
    assert reached["after"] < 6


def test_a_small_vae_learns_to_copy_digits(service: bp.Service) -> None:
    reached = vae.run(service, epochs=10, latent=4, hidden=32)

    assert reached["before"] > 45
    assert reached["after"] < 32


def test_a_small_gan_moves_its_points_to_the_clusters(service: bp.Service) -> None:
    reached = gan.run(service, steps=60, hidden=16)

    assert reached["distance"] < 0.6  # an untrained generator's points lie around the middle, 0.73 from a center


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reaches_its_level_as_a_process_with_a_service_of_its_own(name: str) -> None:
    pattern, is_reached = RECIPES[name]

    command = [sys.executable, "-m", f"examples.recipes.{name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)

    assert done.returncode == 0, done.stdout + done.stderr
    (figure,) = re.findall(pattern, done.stdout.rstrip().splitlines()[-1])
    assert is_reached(float(figure)), done.stdout


# --- beside PyTorch ----------------------------------------------------------------------------------------------


def drawn(program: bp.BuiltProgram, scale: float = 0.3) -> dict[str, np.ndarray]:
    """Random values of the parameters."""
    random = np.random.default_rng(1)
    return {n: random.normal(0, scale, type.shape).astype("float32") for n, type in program.parameters.items()}


class Weights(dict[str, Any]):
    """Parameters as tensors that collect gradients."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        super().__init__({name: torch.tensor(value, requires_grad=True) for name, value in values.items()})

    def linear(self, x: Any, name: str) -> Any:
        return x @ self[f"{name}.weight"] + self[f"{name}.bias"]

    def agree_with(self, found: bp.Gradients, loss: Any) -> None:
        """Both losses and all gradients are equal."""
        loss.backward()
        np.testing.assert_allclose(found.loss, loss.item(), rtol=1e-5)
        assert found.gradients.keys() == self.keys()
        for name, weight in self.items():
            wanted = np.zeros(weight.shape) if weight.grad is None else weight.grad.numpy()
            scale = max(1e-3, np.abs(wanted).max())
            np.testing.assert_allclose(found.gradients[name] / scale, wanted / scale, atol=1e-5, err_msg=name)


@beside_torch
def test_gradients_of_the_lstm_equal_those_of_packed_sequences(service: bp.Service) -> None:
    program = lstm.classifier(features=4, hidden=6)
    feeds = {**lstm.batch(["x = 1", "a longer line of English", "return y"]), "label": np.array([1, 0, 1])}
    values = drawn(program)
    found = service.programs.create(program).gradients(feeds=feeds, parameters=values)

    w = Weights(values)
    network = torch.nn.LSTM(4, 6, batch_first=True, bidirectional=True)
    names = {f"{t}_l0{d}": f"lstm.{ours}_0{d}" for d in ("", "_reverse") for t, ours in TORCH_NAMES.items()}
    x = F.embedding(torch.tensor(feeds["text"]), w["embedding.weight"])
    lengths = torch.tensor(feeds["lengths"])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    _, (h, _) = torch.func.functional_call(network, {t: w[ours] for t, ours in names.items()}, (packed,))
    logits = w.linear(torch.cat([h[0], h[1]], 1), "head")
    w.agree_with(found, F.cross_entropy(logits, torch.tensor(feeds["label"])))


TORCH_NAMES = {"weight_ih": "weight_x", "weight_hh": "weight_h", "bias_ih": "bias_x", "bias_hh": "bias_h"}


def test_padding_has_no_gradient_and_changes_no_result(service: bp.Service) -> None:
    assert lstm.padding_gradient(service) == 0.0

    program = lstm.classifier(features=4, hidden=6)
    lines = ["x = 1", "return the longest of these lines"]
    both = service.programs.create(program)
    values, label = drawn(program), np.array([1, 0])
    together = both.gradients(feeds={**lstm.batch(lines), "label": label}, parameters=values, fetch=["logits"])
    alone = both.gradients(feeds={**lstm.batch(lines[:1]), "label": label[:1]}, parameters=values, fetch=["logits"])
    np.testing.assert_allclose(together.fetched["logits"][:1], alone.fetched["logits"], rtol=1e-5)


@beside_torch
def test_gradients_of_the_gpt_equal_those_of_pytorch(service: bp.Service) -> None:
    program = gpt.gpt(characters=11, context=6, layers=2, heads=2, features=8)
    random = np.random.default_rng(0)
    feeds = {name: random.integers(0, 11, (3, 6)) for name in ("tokens", "following")}
    values = drawn(program)
    found = service.programs.create(program).gradients(feeds=feeds, parameters=values)

    w = Weights(values)

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (8,), w[f"{name}.scale"], w[f"{name}.bias"])

    def heads(x: Any) -> Any:
        return x.reshape(3, 6, 2, 4).transpose(1, 2)

    h = w["characters.weight"][torch.tensor(feeds["tokens"])] + w["positions"]
    for block in ("block_0", "block_1"):
        x = norm(h, f"{block}.norm")
        q, k, v = (heads(w.linear(x, f"{block}.attention.{part}")) for part in ("query", "key", "value"))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(3, 6, 8)
        h = h + w.linear(seen, f"{block}.attention.out")
        h = h + w.linear(F.gelu(w.linear(norm(h, f"{block}.norm_1"), f"{block}.grow")), f"{block}.shrink")
    logits = norm(h, "norm") @ w["characters.weight"].T
    w.agree_with(found, F.cross_entropy(logits.reshape(18, 11), torch.tensor(feeds["following"]).reshape(18)))


@beside_torch
def test_gradients_of_the_vae_equal_those_of_pytorch_with_the_same_noise(service: bp.Service) -> None:
    program = vae.vae(latent=3, hidden=8)
    x = digits.load()[0].x[:5]
    values = drawn(program)
    (noise,) = outputs_of(program, "gaussian_random_like")
    found = service.programs.create(program).gradients(feeds={"x": x}, parameters=values, fetch=[noise])

    w, pixels = Weights(values), torch.tensor(x)
    h = F.relu(w.linear(pixels, "encoder.hidden"))
    mean, log_variance = w.linear(h, "encoder.mean"), w.linear(h, "encoder.log_variance")
    z = mean + (log_variance / 2).exp() * torch.tensor(found.fetched[noise])
    logits = w.linear(F.relu(w.linear(z, "decoder.hidden")), "decoder.pixels")
    prior, posterior = (torch.distributions.Normal(*each) for each in ((0.0, 1.0), (mean, (log_variance / 2).exp())))
    kl = torch.distributions.kl_divergence(posterior, prior).sum()
    copied = F.binary_cross_entropy_with_logits(logits, pixels, reduction="sum")
    w.agree_with(found, (copied + kl) / 5)


@beside_torch
def test_gradients_of_the_gradient_penalty_equal_those_of_pytorch(service: bp.Service) -> None:
    program = gan.critic_program(hidden=8)
    random = np.random.default_rng(0)
    real, fake = gan.drawn(random, 6), random.normal(size=(6, 2)).astype("float32")
    values = drawn(program, 0.7)
    (share,) = outputs_of(program, "uniform_random_like")
    found = service.programs.create(program).gradients(
        feeds={"real": real, "fake": fake}, parameters=values, fetch=[share]
    )

    w = Weights(values)

    def critic(x: Any) -> Any:
        for layer in ("layer_0", "layer_1"):
            x = F.relu(w.linear(x, f"critic.{layer}"))
        return w.linear(x, "critic.layer_2")

    r, f, s = torch.tensor(real), torch.tensor(fake), torch.tensor(found.fetched[share])
    between = (s * r + (1 - s) * f).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
    w.agree_with(found, gan.PENALTY * penalty - critic(r).mean() + critic(f).mean())


def outputs_of(program: bp.BuiltProgram, op: str) -> list[str]:
    """The variables that ops of this type write."""
    ops = program.document()["blocks"][0]["ops"]
    return [name for each in ops if each["type"] == op for name in each["outputs"]["out"]]
