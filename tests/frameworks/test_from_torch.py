"""`from_torch`: what training means for a module is kept, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import backpass_client as bp
from backpass_client.torch_tensors import from_array, to_array

torch = pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("onnxscript", reason="needs onnxscript, which exports models of PyTorch")
nn, functional = torch.nn, torch.nn.functional

pytestmark = pytest.mark.slow


class Counting(nn.Module):
    """Buffers of all kinds: running statistics, an average, a count, one that never changes; a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("fixed", torch.arange(5.0))

    def forward(self, tokens: Any) -> Any:
        states = self.norm(self.embedding(tokens))
        self.average.mul_(0.9).add_(0.1 * states.mean(0).detach())
        self.count += 1
        return self.scale * self.head(states) + self.frozen + self.fixed


def test_tied_weights_scalars_frozen_parameters_and_buffers_train_as_in_torch(service: bp.Service):
    module, tokens, labels = Counting(), torch.arange(4), torch.tensor([1, 0, 3, 4])
    program = bp.from_torch(module, tokens, service, loss="cross_entropy")
    feeds = {"tokens": tokens.numpy(), "label": labels.numpy()}

    with program.session(optimizer={"type": "sgd", "learning_rate": 0.1}) as session:
        losses = [float(session.step(feeds).loss) for _ in range(5)]
        other = Counting()
        session.load_into(other)

    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    expected = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(tokens), labels)
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert {each["name"] for each in program.signature["parameters"]} == {
        "embedding.weight", "norm.weight", "norm.bias", "scale",
    }  # fmt: skip
    assert other.head.weight is other.embedding.weight
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(other.state_dict()[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_the_names_are_those_of_the_state_dict(service: bp.Service):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    program = bp.from_torch(module, torch.ones(4, 2), service)

    assert {each["name"] for each in program.signature["parameters"]} == set(module.state_dict())
    assert program.inputs == ["input"]


def test_arguments_and_results_are_kept_apart_from_parameters_of_their_name(service: bp.Service):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
            self.t = nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Any, scale: Any) -> Any:
            return ((x.t() * self.t).tanh().sum() * scale * self.scale).sum()

    module, x, scale = Scaled(), torch.ones(2, 3), torch.tensor([4.0, 5.0, 6.0])
    program = bp.from_torch(module, (x, scale), service, loss=lambda y: y)

    assert program.inputs == ["x", "scale_1"]
    assert {each["name"] for each in program.signature["parameters"]} == {"scale", "t"}
    found = program.gradients(feeds={"x": x.numpy(), "scale_1": scale.numpy()})
    module(x, scale).backward()
    for name, p in module.named_parameters():
        np.testing.assert_allclose(found.gradients[name], p.grad, rtol=1e-5, err_msg=name)


def test_an_open_batch_takes_batches_of_any_size(service: bp.Service):
    module = nn.Sequential(nn.Conv1d(2, 3, 3), nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 1))
    batch = torch.export.Dim("batch", min=2)
    program = bp.from_torch(
        module, torch.randn(4, 2, 6), service, dynamic_shapes={"input": {0: batch}},
        loss=lambda y, target: functional.smooth_l1_loss(y, target, beta=0.5), targets=torch.randn(4, 1),
    )  # fmt: skip

    for size in (2, 5, 8):
        x, target = torch.randn(size, 2, 6), torch.randn(size, 1)
        found = program.gradients(feeds={"input": x.numpy(), "target": target.numpy()})
        module.zero_grad()
        loss = functional.smooth_l1_loss(module(x), target, beta=0.5)
        loss.backward()
        np.testing.assert_allclose(found.loss, loss.item(), rtol=1e-5)
        for name, p in module.named_parameters():
            np.testing.assert_allclose(found.gradients[name], p.grad, rtol=1e-3, atol=1e-5, err_msg=name)


def test_the_feeds_are_the_arguments_in_order_and_then_the_targets(service: bp.Service):
    """The order in which people name them: zip(program.inputs, (tokens, mask, following)) gives the module its own."""

    class Weighed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
            return self.layer(first) * second

    module, given = Weighed(), [torch.randn(4, 3), torch.randn(4, 2), torch.randn(4, 2), torch.rand(4, 2)]
    arrays = [each.numpy() for each in given]
    loss = lambda y, target, weight: ((y - target) ** 2 * weight).mean()

    for examples, targets in ((given[:2], given[2:]), (arrays[:2], arrays[2:])):
        program = bp.from_torch(module, tuple(examples), service, loss=loss, targets=tuple(targets))
        assert program.inputs == ["first", "second", "target_0", "target_1"]
        found = program.gradients(feeds=dict(zip(program.inputs, arrays, strict=True)))
        expected = loss(module(*given[:2]), *given[2:])
        np.testing.assert_allclose(found.loss, expected.item(), rtol=1e-5)


def test_arguments_by_name_and_integers_are_feeds(service: bp.Service):
    class Picking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(4, 3))

        def forward(self, index: Any, *, weight: Any, mask: Any) -> Any:
            return {"picked": torch.where(mask, self.table[index] * weight, 0.0), "total": self.table.sum()}

    module = Picking()
    given = {
        "index": torch.tensor([1, 3]),
        "weight": torch.tensor([[2.0], [3.0]]),
        "mask": torch.tensor([[True], [False]]),
    }
    program = bp.from_torch(module, given, service)

    found = program.gradients(
        feeds={n: t.numpy() for n, t in given.items()}, targets=program.outputs, inputs=["table", "weight"]
    )

    expected = np.ones((4, 3))
    expected[1] += 2.0
    np.testing.assert_allclose(found.gradients["table"], expected)
    np.testing.assert_allclose(found.gradients["weight"][:, 0], [module.table[1].sum().item(), 0.0], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_module_of_another_precision_keeps_it(dtype: str, service: bp.Service):
    kind = getattr(torch, dtype)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(kind)
    x = torch.randn(5, 3).to(kind)
    program = bp.from_torch(module, x, service)

    found = program.gradients(feeds={"input": to_array(x)}, targets=program.outputs, inputs=list(module.state_dict()))

    module(x).sum().backward()
    tolerance = {"float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-10}[dtype]
    for name, p in module.named_parameters():
        assert found.gradients[name].dtype.name == dtype
        difference = (from_array(found.gradients[name]).double() - p.grad.double()).abs().max()
        assert difference <= tolerance * p.grad.double().abs().max(), name


@pytest.mark.parametrize(
    "module",
    [
        nn.Dropout(0.25),
        nn.Sequential(nn.Linear(200, 200), nn.Dropout(0.25)),
        nn.Dropout2d(0.25),
        nn.AlphaDropout(0.25),
    ],
    ids=["plain", "after a layer", "by channel", "alpha"],
)
def test_dropout_draws_new_numbers_in_each_step(module: Any, service: bp.Service):
    x = torch.ones(100, 200)[None] if isinstance(module, nn.Dropout2d) else torch.ones(100, 200)
    program = bp.from_torch(module, x, service)
    feeds, name = {"input": x.numpy()}, program.outputs[0]

    runs = [program.gradients(feeds=feeds, targets=[name], inputs=["input"], fetch=[name], step=s) for s in (0, 1, 0)]

    first, second, again = (each.fetched[name] for each in runs)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, again)
    dropped = float((runs[0].gradients["input"] == 0).mean()) if len(list(module.children())) == 0 else None
    if dropped is not None and not isinstance(module, nn.Dropout2d):
        assert dropped == pytest.approx(0.25, abs=0.02)


def test_attention_drops_weights_in_training_and_hides_keys(service: bp.Service):
    class Attention(nn.Module):
        def forward(self, q: Any, mask: Any) -> Any:
            return functional.scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.5)

    q = torch.randn(2, 64, 8)
    mask = torch.ones(64, 64, dtype=torch.bool).tril()
    mask[3] = False
    program = bp.from_torch(Attention(), (q, mask), service)
    feeds, name = {"q": q.numpy(), "mask": mask.numpy()}, program.outputs[0]

    draws = [program.gradients(feeds=feeds, targets=[name], inputs=["q"], fetch=[name], step=s) for s in range(200)]

    exact = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    mean = np.mean([each.fetched[name] for each in draws], 0)
    assert not np.allclose(draws[0].fetched[name], exact, atol=0.1)
    np.testing.assert_allclose(mean, exact, atol=0.5)
    assert np.abs(mean[:, 40:] - exact[:, 40:].numpy()).mean() < 0.05
    assert np.all(draws[0].fetched[name][:, 3] == 0)
    assert all(np.isfinite(each.gradients["q"]).all() for each in draws)


@pytest.mark.parametrize(("causal", "grouped"), [(False, False), (True, False), (True, True)])
def test_attention_equals_that_of_torch(causal: bool, grouped: bool, service: bp.Service):
    class Attention(nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    q, k, v = (
        torch.randn(2, 4, 5, 3),
        torch.randn(2, 2 if grouped else 4, 6, 3),
        torch.randn(2, 2 if grouped else 4, 6, 3),
    )
    given = [each.requires_grad_() for each in (q, k, v)]
    program = bp.from_torch(Attention(), (q, k, v), service)

    found = program.gradients(
        feeds={n: to_array(t) for n, t in zip("qkv", given, strict=True)}, targets=program.outputs, inputs=list("qkv"),
        fetch=program.outputs,
    )  # fmt: skip

    expected = Attention()(q, k, v)
    expected.sum().backward()
    np.testing.assert_allclose(found.fetched[program.outputs[0]], expected.detach(), rtol=1e-5, atol=1e-6)
    for name, each in zip("qkv", given, strict=True):
        np.testing.assert_allclose(found.gradients[name], each.grad, rtol=1e-4, atol=1e-5)


def test_batch_normalisation_in_evaluation_uses_its_running_statistics(service: bp.Service):
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    module[0].running_mean += 5.0
    module[0].eval()
    x = torch.randn(4, 3)
    program = bp.from_torch(module, x, service)

    found = program.gradients(
        feeds={"input": x.numpy()}, targets=program.outputs, inputs=["input"], fetch=program.outputs
    )

    np.testing.assert_allclose(found.fetched[program.outputs[0]], module(x).detach(), rtol=1e-5)


def test_batch_normalisation_without_running_statistics_uses_the_batch(service: bp.Service):
    module = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False, affine=False), nn.Linear(3, 1))
    x = torch.randn(4, 3) * 3 + 1
    program = bp.from_torch(module, x, service)

    found = program.gradients(feeds={"input": x.numpy()}, targets=program.outputs, fetch=program.outputs)

    np.testing.assert_allclose(found.fetched[program.outputs[0]], module(x).detach(), rtol=1e-4, atol=1e-5)


def test_an_operator_that_would_be_exported_as_in_evaluation_is_refused(service: bp.Service):
    module = nn.Sequential(nn.Linear(2, 2), nn.RReLU())

    with pytest.raises(bp.BackpassError, match=r"rrelu.* \(at 1\)"):
        bp.from_torch(module, torch.ones(1, 2), service)


def test_a_module_that_cannot_be_traced_is_refused_and_stays_as_it_was(service: bp.Service):
    class Deciding(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2 if x.sum() > 0 else x

    module = Deciding()

    with pytest.raises(bp.BackpassError, match=r"torch\.export cannot trace Deciding"):
        bp.from_torch(module, torch.ones(2), service)

    assert "forward" not in vars(module)
    assert module(torch.ones(2)).tolist() == [2.0, 2.0]


def lstm_of_packed(x: Any, lengths: Any, module: Any) -> Any:
    return module(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0]


@pytest.mark.parametrize("where", ["in the module", "before it"])
def test_packed_sequences_are_refused_with_the_way_out(service: bp.Service, where: str):
    x, lengths = torch.randn(3, 5, 3), torch.tensor([5, 2, 4])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.LSTM(3, 4, batch_first=True)

        def forward(self, x: Any, lengths: Any) -> Any:
            return self.rnn(x)[1][0] if lengths is None else lstm_of_packed(x, lengths, self.rnn)

    module = Last()
    with pytest.raises(bp.BackpassError, match=r"packed sequences have no counterpart .* lengths as a feed"):
        bp.from_torch(module, (x, lengths) if where == "in the module" else (packed, None), service)

    assert module(x, lengths).shape == (1, 3, 4), "packing works again"


def test_weights_of_another_model_are_refused_before_anything_changes(service: bp.Service):
    program = bp.from_torch(nn.Linear(2, 3), torch.ones(1, 2), service, loss=None)
    wrong = nn.Linear(4, 3)
    before = {key: value.clone() for key, value in wrong.state_dict().items()}

    with program.session(targets=program.outputs) as session:
        with pytest.raises(bp.BackpassError, match=r"weight: \[3, 2\] in place of \[3, 4\]"):
            session.load_into(wrong)
        with pytest.raises(bp.BackpassError, match="is a parameter or buffer of ReLU"):
            session.load_into(nn.ReLU())

    assert all(torch.equal(value, before[key]) for key, value in wrong.state_dict().items())
