"""Fine-tuning: an ONNX file learns other classes in the service, and leaves as an ONNX file.

The file is a convolutional network that knows the digits 0 to 4. Its last layer is replaced by a new one for the digits
5 to 9. The service trains the new layer on 20 examples of each of them, while the convolutions keep their weights.

    python -m examples.recipes.onnx_fine_tuning --url http://127.0.0.1:8080
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.utils import Extractor

import backpass_client as bp
from examples.digits import load
from examples.recipes.start import connected, options

EXAMPLES = 20  # of each new digit
CLASSES = 5
Data = dict[str, np.ndarray]


def digits() -> dict[str, Data]:
    """Images [n, 1, 8, 8] and their classes 0 to 4: of the digits 0 to 4 and 5 to 9, for training and for tests."""
    sets = {}
    for name, data in zip(("train", "test"), load(), strict=True):
        for first, kind in ((0, "old"), (5, "new")):
            rows = np.flatnonzero((data.y >= first) & (data.y < first + CLASSES))
            if name == "train" and kind == "new":
                rows = np.concatenate([rows[data.y[rows] == digit][:EXAMPLES] for digit in range(5, 10)])
            sets[f"{kind} {name}"] = {"image": data.x[rows].reshape(-1, 1, 8, 8), "digit": data.y[rows] - first}
    return sets


# --8<-- [start:pretrained]
@bp.program
def network(image: bp.f32["batch", 1, 8, 8], digit: bp.i64["batch"]):
    h = bp.relu(bp.nn.Conv(16, 3, stride=2, padding=1, name="first")(image))
    h = bp.relu(bp.nn.Conv(32, 3, stride=2, padding=1, name="second")(h))
    features = h.reshape("batch", 128).named("features")
    logits = bp.nn.Linear(CLASSES, name="head")(features)
    return {"loss": bp.softmax_with_cross_entropy(logits, digit).mean(), "logits": logits}


def write_pretrained(service: bp.Service, data: Data, path: Path, epochs: int) -> None:
    """Train on the old digits and write the model. Any other ONNX file would do in its place."""
    with service.create_session(network, optimizer={"type": "adam", "learning_rate": 0.005}) as session:
        session.fit(service.datasets.upload(data, name="old digits"), epochs=epochs, batch_size=64, progress=False)
        session.to_onnx(path, outputs=["logits"])


# --8<-- [end:pretrained]


# --8<-- [start:head]
def with_new_head(path: Path) -> onnx.ModelProto:
    """The model up to its `features`, and a new last layer of zeros behind them."""
    model = Extractor(onnx.load(path)).extract_model(["image"], ["features"])
    graph = model.graph
    weight, bias = np.zeros((128, CLASSES), "float32"), np.zeros(CLASSES, "float32")
    graph.initializer.append(numpy_helper.from_array(weight, "new_head.weight"))
    graph.initializer.append(numpy_helper.from_array(bias, "new_head.bias"))
    graph.node.append(helper.make_node("Gemm", ["features", "new_head.weight", "new_head.bias"], ["logits"]))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES]))
    onnx.checker.check_model(model, full_check=True)
    return model


# --8<-- [end:head]


# --8<-- [start:tune]
def tune(service: bp.Service, model: onnx.ModelProto, data: Data, epochs: int, path: Path) -> dict[str, np.ndarray]:
    """Train the new layer and write the model. Returns the curves of the training."""
    program = service.programs.create_from_onnx(
        model,
        loss="cross_entropy",
        of="logits",
        label="digit",
        trainable=["new_head.weight", "new_head.bias"],
    )
    dataset = service.datasets.upload(data, name="new digits")
    with program.session(optimizer={"type": "adam", "learning_rate": 0.01}) as session:
        curves = session.fit(dataset, epochs=epochs, batch_size=25, validation={"fraction": 0.2}, progress=False)
        session.to_onnx(path)
    return curves


# --8<-- [end:tune]


# --8<-- [start:accuracy]
def accuracy(path: Path, data: Data) -> float:
    """The share of right classes, computed by onnxruntime, or by the reference of the package onnx without it."""
    try:
        import onnxruntime

        (logits,) = onnxruntime.InferenceSession(path).run(["logits"], {"image": data["image"]})
    except ImportError:
        from onnx.reference import ReferenceEvaluator

        (logits,) = ReferenceEvaluator(str(path)).run(["logits"], {"image": data["image"]})
    return float((np.asarray(logits).argmax(1) == data["digit"]).mean())


# --8<-- [end:accuracy]


def run(service: bp.Service, folder: Path, epochs: int = 20, tuning_epochs: int = 30) -> dict[str, float]:
    """Write `pretrained.onnx` and `tuned.onnx` to the folder; returns their accuracies on test digits, and losses."""
    data = digits()
    pretrained, tuned = folder / "pretrained.onnx", folder / "tuned.onnx"
    write_pretrained(service, data["old train"], pretrained, epochs)
    found = {"pretrained": accuracy(pretrained, data["old test"])}
    curves = tune(service, with_new_head(pretrained), data["new train"], tuning_epochs, tuned)
    return found | {
        "tuned": accuracy(tuned, data["new test"]),
        "first loss": float(curves["loss"][0]),
        "validation loss": float(curves["validation/loss"][-1]),
    }


def main() -> int:
    given = options(__doc__, epochs=20, tuning_epochs=30)
    with connected(given.url) as service, tempfile.TemporaryDirectory() as folder:
        found = run(service, Path(folder), given.epochs, given.tuning_epochs)
        sizes = {path.name: path.stat().st_size for path in sorted(Path(folder).iterdir())}
    print(f"pretrained.onnx: {sizes['pretrained.onnx']} bytes, accuracy {found['pretrained']:.3f} on the digits 0 to 4")
    print(f"new head: loss {found['first loss']:.3f} -> {found['validation loss']:.3f} on examples kept for validation")
    print(f"tuned.onnx: {sizes['tuned.onnx']} bytes, accuracy {found['tuned']:.3f} on the digits 5 to 9")
    return 0 if found["tuned"] > 0.85 else 1


if __name__ == "__main__":
    sys.exit(main())
