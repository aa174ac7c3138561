"""Operators of ai.onnx.ml agree with onnxruntime, and their gradients with differences."""

from __future__ import annotations

import numpy as np
import pytest

from core.ir.errors import ProgramError
from tests.core.onnx.beside_runtime import check_node, one_node
from tests.core.onnx.models import imported

ML = "ai.onnx.ml"
X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


def check(op, x=X, **how):
    check_node(op, {"x": x}, domain=ML, **how)


@pytest.mark.parametrize(
    ("op", "how"),
    [
        ("Scaler", {"offset": [0.5, 1.0, -1.0, 0.0], "scale": [2.0, 0.5, 1.0, 3.0]}),
        ("Scaler", {"offset": [0.5], "scale": [2.0]}),
        ("Binarizer", {"threshold": 0.2}),
        ("Normalizer", {"norm": "L1"}),
        ("Normalizer", {"norm": "L2"}),
        ("LinearRegressor", {"coefficients": [1.0, 2, 3, 4, 5, 6, 7, 8], "intercepts": [0.5, -1.0], "targets": 2}),
        ("LinearRegressor", {"coefficients": [1.0, 2, 3, 4], "targets": 1}),
    ],
)
def test_features_and_regressors_agree(op, how):
    for open_sizes in (False, True):
        check(op, open_sizes=open_sizes, **how)


def test_rows_divided_by_their_maximum_agree():
    check("Normalizer", np.abs(X), norm="MAX")


@pytest.mark.parametrize("missing", [float("nan"), -1.0])
def test_imputed_values_agree(missing):
    x = X.copy()
    x[1, 2] = x[4, 0] = missing

    check("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0, 4.0], replaced_value_float=missing, gradient=False)


def test_encoded_categories_agree():
    check("OneHotEncoder", np.array([[1, 5], [7, 9]]), cats_int64s=[1, 7, 9], gradient=False)


def test_encoded_labels_agree():
    keys = {"keys_int64s": [1, 5, 7], "values_floats": [0.5, -2.0, 3.0], "default_float": 9.0}

    check("LabelEncoder", np.array([[1, 5], [7, 2]]), gradient=False, **keys)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_linear_classes_agree(transform):
    coefficients = np.random.default_rng(1).normal(size=12).tolist()

    check(
        "LinearClassifier", outputs=["int64", "float32"], coefficients=coefficients, intercepts=[0.1, 0.2, 0.3],
        classlabels_ints=[4, 7, 2], post_transform=transform,
    )  # fmt: skip


@pytest.mark.parametrize("kernel", ["LINEAR", "RBF", "POLY", "SIGMOID"])
def test_support_vectors_agree(kernel):
    rng = np.random.default_rng(2)

    check(
        "SVMRegressor", n_supports=3, kernel_type=kernel, kernel_params=[0.4, 0.3, 2.0], rho=[0.7],
        coefficients=rng.normal(size=3).tolist(), support_vectors=rng.normal(size=12).tolist(),
    )  # fmt: skip


# --- trees -----------------------------------------------------------------------------------------------------------


def forest(prefix, targets, trees=3, depth=3, positive=False, modes=("BRANCH_LEQ",)):
    """Attributes of full random trees. The nodes of a tree are numbered by levels."""
    rng = np.random.default_rng(4)
    inner, count = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = ["treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids"]
    names = [*(f"nodes_{n}" for n in nodes), "nodes_missing_value_tracks_true"]
    leaves = [f"{prefix}_{n}" for n in ("treeids", "nodeids", "ids", "weights")]
    found: dict[str, list] = {name: [] for name in (*names, *leaves)}
    for tree in range(trees):
        for number in range(count):
            leaf = number >= inner
            row = (
                tree, number, 0 if leaf else int(rng.integers(4)), 0.0 if leaf else float(rng.normal()),
                "LEAF" if leaf else modes[number % len(modes)], 0 if leaf else 2 * number + 1,
                0 if leaf else 2 * number + 2, int(rng.integers(2)),
            )  # fmt: skip
            for name, value in zip(names, row, strict=True):
                found[name].append(value)
            for target in targets if leaf else ():
                weight = float(rng.uniform() if positive else rng.normal())
                for name, value in zip(leaves, (tree, number, target, weight), strict=True):
                    found[name].append(value)
    return found


def with_gaps():
    x = X.copy()
    x[2, 1] = x[3, 3] = np.nan
    return x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("modes", [("BRANCH_LEQ",), ("BRANCH_LT", "BRANCH_GT", "BRANCH_GTE")])
def test_regression_trees_agree(kind, modes):
    trees = forest("target", [0, 1], modes=modes)

    check(
        "TreeEnsembleRegressor", with_gaps(), aggregate_function=kind, n_targets=2, base_values=[0.5, -0.5],
        gradient=False, **trees,
    )  # fmt: skip
    check("TreeEnsembleRegressor", aggregate_function=kind, n_targets=2, **trees)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC"])
def test_classification_trees_agree(transform):
    check(
        "TreeEnsembleClassifier", outputs=["int64", "float32"], classlabels_int64s=[3, 1, 8], post_transform=transform,
        gradient=False, **forest("class", [0, 1, 2]),
    )  # fmt: skip


@pytest.mark.parametrize(("positive", "transform"), [(True, "NONE"), (False, "NONE"), (False, "LOGISTIC")])
def test_one_score_for_two_classes_agrees(positive, transform):
    check(
        "TreeEnsembleClassifier", outputs=["int64", "float32"], classlabels_int64s=[3, 5], post_transform=transform,
        gradient=False, **forest("class", [0], trees=2, positive=positive),
    )  # fmt: skip


def test_a_cycle_of_branches_is_refused():
    trees = forest("target", [0])
    trees["nodes_truenodeids"][1] = 0
    model = one_node("TreeEnsembleRegressor", {"x": X}, domain=ML, n_targets=1, **trees)

    with pytest.raises(ProgramError, match="no cycle"):
        imported(model)


def test_labels_that_are_strings_are_refused():
    model = one_node(
        "LinearClassifier", {"x": X}, ["int64", "float32"], domain=ML, coefficients=[1.0] * 8, intercepts=[0.0, 0.0],
        classlabels_strings=["a", "b"],
    )  # fmt: skip

    with pytest.raises(ProgramError, match="strings"):
        imported(model)


# --- n-grams ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize(("least", "most", "skip"), [(1, 1, 0), (2, 2, 0), (1, 2, 3), (2, 3, 2)])
def test_counts_of_n_grams_agree(mode, least, most, skip):
    x = np.random.default_rng(5).integers(1, 4, (3, 8))

    check_node(
        "TfIdfVectorizer", {"x": x}, mode=mode, min_gram_length=least, max_gram_length=most, max_skip_count=skip,
        pool_int64s=[1, 2, 3, 1, 2, 2, 3, 1, 2, 3, 3, 1, 1], ngram_counts=[0, 3, 7],
        ngram_indexes=[4, 0, 2, 1, 3, 5, 6], weights=[0.5, 2.0, 1.5, 3.0, 0.25, 4.0, 0.75], gradient=False,
    )  # fmt: skip
