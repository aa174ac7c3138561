"""ResNet-18 and GPT-2 small from their ONNX files, in comparison with PyTorch.

    python -m bench.torch_models [resnet18] [gpt2]

Measured are the import over HTTP, a new session with its first step (compilation included), and later steps of plain
gradient descent; then steps of PyTorch, eager and compiled, in the same run. Caches of compiled code start empty.
Needs torch, torchvision, transformers, onnxscript.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from backpass_client import Program, Service
from backpass_client.torch_export import exported
from examples.demo import running_service

STEPS = 5
RATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["resnet18", "gpt2"])
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    asked = parser.parse_args()
    missing = [name for name in ("torch", "torchvision", "transformers", "onnxscript") if find_spec(name) is None]
    if missing:
        print(f"needs {', '.join(missing)}")
        return
    print("| model | ONNX file | import | first step | step | torch eager | torch.compile, first | torch.compile |")
    print("|---|---|---|---|---|---|---|---|")
    for name in asked.models:
        print(_row(name, not asked.no_compile), flush=True)


def _row(name: str, compiles: bool) -> str:
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    module, inputs, label = {"resnet18": _resnet18, "gpt2": _gpt2}[name]()
    data = exported(module, inputs, {}).data
    ours = _in_service(data, inputs, label)
    eager = _timed(_step_of(module, inputs, label), STEPS + 1)
    cells = [f"{len(data) / 1e6:.0f} MB", *(f"{each:.2f} s" for each in ours), f"{statistics.median(eager[1:]):.2f} s"]
    if compiles:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            compiled = _timed(_step_of(torch.compile(module), inputs, label), STEPS + 1)
        cells += [f"{compiled[0]:.1f} s", f"{statistics.median(compiled[1:]):.2f} s"]
    else:
        cells += ["-", "-"]
    return f"| {name} | {' | '.join(cells)} |"


def _in_service(data: bytes, inputs: Sequence[Any], label: Any) -> tuple[float, float, float]:
    """Seconds of the import, of a new session with its first step, and of a later step."""
    with running_service(device="cpu", workers="1") as url, Service(url, timeout=600.0) as service:
        started = time.perf_counter()
        program = Program.from_onnx(service, data, loss="cross_entropy")
        imported = time.perf_counter() - started
        feeds = dict(zip(program.inputs, [each.numpy() for each in (*inputs, label)], strict=True))
        started = time.perf_counter()
        with program.session(optimizer={"type": "sgd", "learning_rate": RATE}, durability="none") as session:
            session.step(feeds, deadline_s=600.0)
            first = time.perf_counter() - started
            times = _timed(lambda: session.step(feeds, deadline_s=600.0), STEPS)
    return imported, first, statistics.median(times)


def _step_of(module: Any, inputs: Sequence[Any], label: Any) -> Callable[[], Any]:
    import torch

    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(*inputs), label).backward()
        optimizer.step()

    return step


def _timed(step: Callable[[], Any], count: int) -> list[float]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return times


def _resnet18() -> tuple[Any, tuple[Any, ...], Any]:
    import torch

    from tests.frameworks.zoo import vision_models

    return vision_models().resnet18().train(), (torch.randn(16, 3, 64, 64),), torch.randint(0, 1000, (16,))


def _gpt2() -> tuple[Any, tuple[Any, ...], Any]:
    import torch

    from tests.frameworks.zoo import Logits, vision_models

    vision_models()  # transformers imports it
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    tokens, label = torch.randint(0, config.vocab_size, (2, 4, 128))
    return Logits(GPT2LMHeadModel(config)).train(), (tokens,), label


if __name__ == "__main__":
    main()
