"""Names of other libraries that are no ops here, and their meaning in this package."""

from __future__ import annotations

__all__ = ["FOREIGN_NAMES", "METHODS"]

OPS = "its functions are functions of this package, such as bp.exp"
OPTIMIZER = 'optimizers are settings of a session: optimizer={"type": "adam", "learning_rate": 0.001}'
INITIALIZER = 'first values are texts or arrays: bp.parameter(name, shape, init="he_normal")'
SEED = 'seeds are settings: init={"seed": 0} of a session, seed=0 of a tape or a call without a session'
DEVICE = "the service chooses the processor that computes"
SAVE = "did you mean Session.checkpoint? Checkpoint.download writes it to a file"
TYPES = "did you mean {}?"

MEANINGS: dict[str, str] = {
    "array as_array as_tensor tensor float_tensor from_numpy": "did you mean constant?",
    "numpy np jnp lax functional f": OPS,
    "linalg": "its functions are ops of this package: solve, inverse, svd, norm, ...",
    "random": "did you mean uniform_random, gaussian_random or randint?",
    "float": TYPES.format("f32"),
    "float16 half": TYPES.format("f16"),
    "bfloat16": TYPES.format("bf16"),
    "float32": TYPES.format("f32"),
    "float64 double": TYPES.format("f64"),
    "uint8": TYPES.format("u8"),
    "int8": TYPES.format("i8"),
    "int16 short": TYPES.format("i16"),
    "int32": TYPES.format("i32"),
    "int64 int long": TYPES.format("i64"),
    "inf nan": 'write float("inf") or float("nan")',
    "pi e": "write math.pi or math.e",
    "new_axis": "write None: x[:, None]",
    "while": "did you mean while_loop?",
    "fori_loop": "did you mean while_loop or scan?",
    "associative_scan": "did you mean scan, or cumsum and cumprod?",
    "jit compile model": "did you mean program? The service compiles it",
    "module": "did you mean nn.Layer?",
    "custom_vjp custom_jvp custom_gradient": "did you mean function? @bp.function and @f.gradient give f a gradient",
    "jacfwd jacrev": "did you mean jacobian?",
    "gradient_tape": "did you mean Tape?",
    "autograd": "did you mean grad, or a Tape?",
    "tree tree_map tree_util": "structures of symbols are Python's tuples, lists and dictionaries",
    "remat": "recomputation is a setting of a request: checkpoints and loop_memory",
    "placeholder input": "did you mean feed?",
    "adam adamw adamax adagrad adadelta rmsprop nadam radam lamb lars lion ftrl optim optimizer optax": OPTIMIZER,
    "lr_scheduler": 'a schedule is a learning rate: {"schedule": "cosine_decay", "learning_rate": 0.1, ...}',
    "grad_scaler": 'use the setting loss_scale="dynamic" of a session',
    "autocast": 'cast the input, bp.cast(x, dtype="bfloat16"): layers take its dtype',
    "init initializer initializers he_normal he_uniform glorot_normal glorot_uniform xavier_uniform": INITIALIZER,
    "seed manual_seed set_seed prng_key": SEED,
    "device device_put cuda cpu": DEVICE,
    "data_loader": "service.datasets.upload stores data, and session.fit trains on them",
    "fit": "did you mean Session.fit?",
    "train": "a session trains, see service.create_session; layers take train=False",
    "save": SAVE,
    "load": "did you mean Session.from_checkpoint or Session.put_parameters?",
    "from_onnx": "did you mean Program.from_onnx?",
    "to_onnx export onnx": "did you mean Program.to_onnx or Session.to_onnx?",
    "all_close array_equal": "compare values with NumPy; in a program write bp.abs(x - y) < 1e-6",
}

METHODS = {
    name: meaning
    for names, meaning in {
        "astype to type type_as float double half bfloat16 int long short bool": 'write bp.cast(x, dtype="float32")',
        "numpy cpu asnumpy tolist": "the value of a symbol or an expression is an array: see value",
    }.items()
    for name in names.split()
}
"""Methods of arrays in other libraries -> the meaning here, where it is not that of the name in a package."""

FOREIGN_NAMES = {name.replace("_", ""): meaning for names, meaning in MEANINGS.items() for name in names.split()}
"""Names of other libraries, without case and separators -> the meaning here."""
