"""Operators of the domain ai.onnx.ml that are formulas over numbers: scaling, encoding and linear models."""

from __future__ import annotations

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

__all__ = ["DOMAIN", "as_float", "class_labels", "transformed"]

DOMAIN = "ai.onnx.ml"


def as_float(node: Node, x: Tensor) -> Tensor:
    return x if x.is_float else node.cast(x, "float32")


def transformed(node: Node, scores: Tensor) -> Tensor:
    """The scores after the attribute post_transform."""
    kind = node.attr("post_transform", "NONE")
    if kind == "NONE":
        return scores
    if kind not in ("LOGISTIC", "SOFTMAX"):
        raise node.refuse(f"post_transform {kind!r} is not supported, only NONE, LOGISTIC and SOFTMAX")
    result: Tensor = node.emit("sigmoid", scores) if kind == "LOGISTIC" else node.emit("softmax", scores, axis=-1)
    return result


def class_labels(node: Node, names: tuple[str, str]) -> list[int]:
    """The labels of the classes. names: the attributes with integers and with strings."""
    if node.has(names[1]) and node.attr(names[1]):
        raise node.refuse("labels that are strings have no counterpart in a program")
    found = [int(n) for n in node.attr(names[0], [])]
    if len(found) < 2:
        raise node.refuse("it needs the labels of two classes or more")
    return found


def _numbers(node: Node, name: str, x: Tensor) -> Tensor:
    """An attribute of numbers in the dtype of x: one number as a scalar."""
    values = np.asarray(node.attr(name), "float32")
    return node.const(values.reshape(()) if values.size == 1 else values, x.dtype)


# --- features --------------------------------------------------------------------------------------------------------


@converter("Scaler", domain=DOMAIN)
def scaler(node: Node) -> Tensor:
    x = as_float(node, node[0])
    x = node.emit("sub", x, _numbers(node, "offset", x)) if node.has("offset") else x
    result: Tensor = node.emit("mul", x, _numbers(node, "scale", x)) if node.has("scale") else x
    return result


@converter("Binarizer", domain=DOMAIN)
def binarizer(node: Node) -> Tensor:
    x = node[0]
    threshold = node.const(node.attr("threshold", 0.0), "float32" if not x.is_float else x.dtype)
    return node.cast(node.emit("greater_than", as_float(node, x), threshold), x.dtype)


@converter("Normalizer", domain=DOMAIN)
def normalizer(node: Node) -> Tensor:
    """Each row divided by its largest element, its 1-norm or its 2-norm; by nothing if that is 0."""
    x, kind = as_float(node, node[0]), node.attr("norm", "MAX")
    if kind not in ("MAX", "L1", "L2"):
        raise node.refuse(f"norm must be MAX, L1 or L2, not {kind!r}")
    how = {"axes": [x.rank - 1], "keepdims": True}
    size = (
        node.emit("reduce_max", x, **how)
        if kind == "MAX"
        else node.emit("norm", x, p=1.0 if kind == "L1" else 2.0, **how)
    )
    empty = node.emit("equal", size, node.const(0, x.dtype))
    result: Tensor = node.emit("div", x, node.emit("where", empty, node.const(1, x.dtype), size))
    return result


@converter("Imputer", domain=DOMAIN)
def imputer(node: Node) -> Tensor:
    x = node[0]
    kind = (
        ("imputed_value_floats", "replaced_value_float")
        if x.is_float
        else ("imputed_value_int64s", "replaced_value_int64")
    )
    values = np.asarray(node.attr(kind[0]))
    if values.size != 1 and x.shape[-1] not in (-1, values.size):
        raise node.refuse(f"{values.size} values do not fit {x.type}")
    missing = node.attr(kind[1], 0)
    if x.is_float and np.isnan(missing):
        found = node.emit("isnan", x)
    else:
        found = node.emit("equal", x, node.const(missing, x.dtype))
    result: Tensor = node.emit(
        "where", found, node.const(values.reshape(()) if values.size == 1 else values, x.dtype), x
    )
    return result


@converter("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(node: Node) -> Tensor:
    widths = [int(n) for n in node.attr("inputdimensions", [])]
    parts = [node.cast(each, "float32") for each in node.tensors()]
    parts = [node.emit("unsqueeze", each, axes=[0]) if each.rank == 1 else each for each in parts]
    if widths and [each.shape[-1] for each in parts] != widths:
        raise node.refuse(f"the inputs do not have the widths {widths}")
    result: Tensor = node.emit("concat", *parts, axis=1)
    return result


@converter("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(node: Node) -> Tensor:
    x, places = node[0], node.reshape(node.cast(node[1], "int64"), [-1])
    found: Tensor = node.emit("gather", x, places, axis=x.rank - 1)
    return node.emit("unsqueeze", found, axes=[0]) if x.rank == 1 else found


@converter("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(node: Node) -> Tensor:
    if node.has("cats_strings") and node.attr("cats_strings"):
        raise node.refuse("categories that are strings have no counterpart in a program")
    if not node.attr("zeros", 1):
        raise node.refuse("an unknown category must give zeros (zeros = 1)")
    x = node.cast(node[0], "int64")
    categories = node.const(node.attr("cats_int64s"), "int64")
    return node.cast(node.emit("equal", node.emit("unsqueeze", x, axes=[x.rank]), categories), "float32")


@converter("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(node: Node) -> Tensor:
    """The value of the last key that equals the element, or the default."""
    x = node[0]
    keys, values = _listed(node, "keys"), _listed(node, "values")
    if keys.size != values.size or not keys.size:
        raise node.refuse(f"{keys.size} keys have {values.size} values")
    default = node.attr("default_tensor").reshape(-1)[0] if node.has("default_tensor") else None
    if default is None:
        default = node.attr("default_int64", -1) if values.dtype.kind == "i" else node.attr("default_float", -0.0)
    wide = node.emit("unsqueeze", x, axes=[x.rank])
    found = node.emit("equal", wide, node.const(keys, x.dtype))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        missing = node.emit("logical_and", node.emit("isnan", wide), node.const(np.isnan(keys), "bool"))
        found = node.emit("logical_or", found, missing)
    # Position 0 holds the default; the last key that is found has the largest position.
    place = node.emit("mul", node.cast(found, "int64"), node.const(np.arange(1, keys.size + 1), "int64"))
    table = node.draft.constant(np.concatenate([np.asarray([default], values.dtype), values]))
    result: Tensor = node.emit("gather", table, node.emit("reduce_max", place, axes=[x.rank]), axis=0)
    return result


def _listed(node: Node, what: str) -> np.ndarray:
    if node.has(f"{what}_strings"):
        raise node.refuse(f"{what} that are strings have no counterpart in a program")
    if node.has(f"{what}_tensor"):
        return np.asarray(node.attr(f"{what}_tensor")).reshape(-1)
    if node.has(f"{what}_int64s"):
        return np.asarray(node.attr(f"{what}_int64s"), "int64")
    return np.asarray(node.attr(f"{what}_floats", []), "float32")


# --- linear models ---------------------------------------------------------------------------------------------------


def _scores(node: Node, x: Tensor, rows: int) -> Tensor:
    """`x @ coefficients.T + intercepts`, with one row of coefficients for each score."""
    coefficients = np.asarray(node.attr("coefficients"), "float32")
    if not coefficients.size or coefficients.size % rows or x.shape[-1] not in (-1, coefficients.size // rows):
        raise node.refuse(f"{coefficients.size} coefficients do not fit {rows} scores of {x.type}")
    scores: Tensor = node.emit("matmul", x, node.const(coefficients.reshape(rows, -1), x.dtype), transpose_y=True)
    intercepts = np.asarray(node.attr("intercepts", []), "float32")
    if intercepts.size not in (0, rows):
        raise node.refuse(f"{intercepts.size} intercepts do not fit {rows} scores")
    return node.emit("add", scores, node.const(intercepts, x.dtype)) if intercepts.size else scores


@converter("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: Node) -> Tensor:
    x = as_float(node, node[0])
    return transformed(node, _scores(node, x, int(node.attr("targets", 1))))


@converter("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: Node) -> tuple[Tensor, Tensor]:
    x = as_float(node, node[0])
    labels = class_labels(node, ("classlabels_ints", "classlabels_strings"))
    if len(node.attr("intercepts", labels)) != len(labels):
        raise node.refuse(f"one score for {len(labels)} classes is not supported: give one for each")
    scores = _scores(node, x, len(labels))
    best = node.emit("argmax", scores, axis=1)
    return node.emit("gather", node.const(labels, "int64"), best, axis=0), transformed(node, scores)


@converter("SVMRegressor", domain=DOMAIN)
def svm_regressor(node: Node) -> Tensor:
    x = as_float(node, node[0])
    count, kind = int(node.attr("n_supports", 0)), node.attr("kernel_type", "LINEAR")
    rho = float(node.attr("rho")[0])
    if node.attr("one_class", 0):
        raise node.refuse("one_class is not supported")
    coefficients = np.asarray(node.attr("coefficients"), "float32")
    if count == 0:
        products = node.emit("matmul", x, node.const(coefficients.reshape(1, -1), x.dtype), transpose_y=True)
    else:
        vectors = node.const(np.asarray(node.attr("support_vectors"), "float32").reshape(count, -1), x.dtype)
        kernel = _kernel(node, x, vectors, kind)
        products = node.emit("matmul", kernel, node.const(coefficients.reshape(1, -1), x.dtype), transpose_y=True)
    return transformed(node, node.emit("scale", products, bias=rho))


def _kernel(node: Node, x: Tensor, vectors: Tensor, kind: str) -> Tensor:
    """The kernel of each row of x with each support vector."""
    gamma, offset, degree = (float(n) for n in [*node.attr("kernel_params", []), 0.0, 0.0, 3.0][:3])
    if kind == "RBF":
        apart = node.emit("sub", node.emit("unsqueeze", x, axes=[1]), vectors)
        square = node.emit("reduce_sum", node.emit("square", apart), axes=[2])
        return node.emit("exp", node.emit("scale", square, scale=-gamma))  # type: ignore[no-any-return]
    product: Tensor = node.emit("matmul", x, vectors, transpose_y=True)
    if kind == "LINEAR":
        return product
    inner = node.emit("scale", product, scale=gamma, bias=offset)
    if kind == "SIGMOID":
        return node.emit("tanh", inner)  # type: ignore[no-any-return]
    if kind == "POLY":
        return node.emit("pow", inner, node.const(degree, x.dtype))  # type: ignore[no-any-return]
    raise node.refuse(f"kernel_type {kind!r} is unknown")
