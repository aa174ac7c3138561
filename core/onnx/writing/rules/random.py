"""Random ops. ONNX's random operators draw other numbers, so none is written."""

from core.onnx.writing.registry import cannot

cannot(
    "ONNX's random operators draw other numbers",
    "bernoulli",
    "exponential",
    "exponential_like",
    "gaussian_random",
    "gaussian_random_like",
    "multinomial",
    "next_key",
    "randint",
    "randint_like",
    "randperm",
    "truncated_gaussian",
    "truncated_gaussian_like",
    "uniform_random",
    "uniform_random_like",
)
