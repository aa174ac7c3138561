"""Ensembles of decision trees: all trees take one step down at a time, from their roots to their leaves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.onnx.reading.node import Node
from core.onnx.reading.operators.classical import DOMAIN, as_float, class_labels, transformed
from core.onnx.reading.registry import converter
from core.onnx.reading.values import Tensor

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER"]
_OPS = ["less_equal", "less_than", "greater_equal", "greater_than", "equal", "not_equal"]
MEMBER = 6
DEEPEST = 1000


@dataclass(slots=True)
class _Forest:
    """Nodes of all trees, one element of each array for a node. A leaf is its own child.

    missing: whether NaN takes the true branch. members: [nodes, most members], filled with NaN.
    """

    feature: np.ndarray
    split: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    leaf: np.ndarray
    roots: np.ndarray
    members: np.ndarray | None = None


def _depth(node: Node, forest: _Forest) -> int:
    """The number of steps that reach every leaf. Raises Refused if a child is no node or its own ancestor."""
    count = len(forest.leaf)
    children = np.concatenate([forest.yes, forest.no, forest.roots])
    if count == 0 or children.min() < 0 or children.max() >= count:
        raise node.refuse(f"a branch names a node outside of the {count} nodes")
    depth, level = 0, np.unique(forest.roots)
    while not forest.leaf[level].all():
        inner = level[~forest.leaf[level]]
        level = np.unique(np.concatenate([forest.yes[inner], forest.no[inner]]))
        depth += 1
        if depth > min(count, DEEPEST):
            raise node.refuse(f"the trees are deeper than {min(count, DEEPEST)}, or have a cycle")
    return depth


def _leaves(node: Node, x: Tensor, forest: _Forest) -> Tensor:
    """The leaf of each row of x in each tree: [rows, trees]."""
    roots = node.const(forest.roots, "int64")
    zeros = node.emit(
        "fill_constant_batch_size_like", x, shape=[x.shape[0], len(forest.roots)], dtype="int64", value=0.0
    )
    at: Tensor = node.emit("add", zeros, roots)
    width = x.shape[1] if x.rank == 2 else 0
    inner = ~forest.leaf
    if x.rank != 2 or (width != -1 and inner.any() and forest.feature[inner].max() >= width):
        raise node.refuse(f"the trees read features beyond {x.type}")
    for _ in range(_depth(node, forest)):
        feature = _looked_up(node, np.where(forest.leaf, 0, forest.feature), at, "int64")
        value = node.emit("take_along_axis", x, feature, axis=1)
        chosen = _condition(node, forest, at, value)
        at = node.emit("where", chosen, *(_looked_up(node, each, at, "int64") for each in (forest.yes, forest.no)))
    return at


def _looked_up(node: Node, table: np.ndarray, at: Tensor, dtype: str) -> Tensor:
    result: Tensor = node.emit("gather", node.const(table, dtype), at, axis=0)
    return result


def _condition(node: Node, forest: _Forest, at: Tensor, value: Tensor) -> Tensor:
    """Whether each node takes its true branch."""
    split = _looked_up(node, forest.split, at, value.dtype)
    mode = _looked_up(node, forest.mode, at, "int64")
    used = sorted({int(m) for m in forest.mode[~forest.leaf]}) or [0]
    chosen: Tensor | None = None
    for each in used:
        if each == MEMBER:
            assert forest.members is not None
            members = _looked_up(node, forest.members, at, value.dtype)
            same = node.emit("equal", node.emit("unsqueeze", value, axes=[2]), members)
            holds = node.emit("reduce_any", same, axes=[2])
        else:
            holds = node.emit(_OPS[each], value, split)
        of_mode = None if chosen is None else node.emit("equal", mode, node.const(each, "int64"))
        chosen = holds if chosen is None else node.emit("where", of_mode, holds, chosen)
    assert chosen is not None
    if forest.missing.any():
        absent = node.emit("logical_and", node.emit("isnan", value), _looked_up(node, forest.missing, at, "bool"))
        chosen = node.emit("logical_or", chosen, absent)
    return chosen


def _aggregated(node: Node, leaves: Tensor, weights: np.ndarray, told: np.ndarray, kind: str, dtype: str) -> Tensor:
    """The weights of the leaves [rows, targets] put together over all trees.

    told: whether a leaf has a weight for each target.
    """
    if kind in ("MIN", "MAX"):
        if not told[told.any(1)].all():
            raise node.refuse(f"{kind} needs a weight for every target in every leaf")
        found: Tensor = node.emit(f"reduce_{kind.lower()}", _looked_up(node, weights, leaves, dtype), axes=[1])
        return found
    if kind not in ("SUM", "AVERAGE"):
        raise node.refuse(f"aggregate_function {kind!r} is unknown")
    op = "reduce_sum" if kind == "SUM" else "reduce_mean"
    result: Tensor = node.emit(op, _looked_up(node, weights, leaves, dtype), axes=[1])
    return result


# --- opsets 1 to 4 ---------------------------------------------------------------------------------------------------


def _either(node: Node, name: str) -> np.ndarray:
    """Numbers that are an attribute of floats, or of doubles under the name with the ending _as_tensor."""
    if node.has(f"{name}_as_tensor"):
        return np.asarray(node.attr(f"{name}_as_tensor")).reshape(-1)
    return np.asarray(node.attr(name, []), "float32")


def _by_ids(node: Node) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """The forest of nodes that are named by tree and number, and the position of each node."""
    trees, numbers = node.attr("nodes_treeids"), node.attr("nodes_nodeids")
    names = [(int(t), int(n)) for t, n in zip(trees, numbers, strict=True)]
    place = {name: i for i, name in enumerate(names)}
    modes = node.attr("nodes_modes")
    leaf = np.array([m == "LEAF" for m in modes])
    unknown = set(modes) - {"LEAF", *MODES[:MEMBER]}
    if unknown or len(place) < len(names):
        raise node.refuse(f"the modes {sorted(unknown)} are unknown, or a node occurs twice")
    own = np.arange(len(names))

    def children(name: str) -> np.ndarray:
        ids = node.attr(name)
        found = [i if leaf[i] else place.get((names[i][0], int(ids[i])), -1) for i in own]
        return np.array(found)

    yes, no = children("nodes_truenodeids"), children("nodes_falsenodeids")
    inner = own[~leaf]
    reached = set(yes[inner].tolist()) | set(no[inner].tolist())
    roots = [i for i in own if i not in reached]
    first: dict[int, int] = {}
    for tree, number in names:
        first[tree] = min(number, first.get(tree, number))
    if set(roots) != {place[name] for name in first.items()}:
        raise node.refuse("the first node of each tree must be its root, and no other node; the branches have no cycle")
    tracks = np.asarray(node.attr("nodes_missing_value_tracks_true", []) or np.zeros(len(names)), bool)
    forest = _Forest(
        np.asarray(node.attr("nodes_featureids")),
        _either(node, "nodes_values"),
        np.array([0 if m == "LEAF" else MODES.index(m) for m in modes]),
        yes,
        no,
        tracks,
        leaf,
        np.array(roots),
    )
    return forest, place


def _leaf_weights(
    node: Node, prefix: str, place: dict[tuple[int, int], int], targets: int
) -> tuple[np.ndarray, np.ndarray]:
    """[nodes, targets] weights of the leaves, and where they are given."""
    values = _either(node, f"{prefix}_weights")
    weights, told = np.zeros((len(place), targets)), np.zeros((len(place), targets), bool)
    ids = (node.attr(f"{prefix}_{name}") for name in ("treeids", "nodeids", "ids"))
    for tree, number, target, weight in zip(*ids, values, strict=True):
        if (tree, number) not in place or not 0 <= target < targets:
            raise node.refuse(
                f"a weight belongs to node {number} of tree {tree} and target {target}, which do not exist"
            )
        weights[place[tree, number], target] += weight
        told[place[tree, number], target] = True
    return weights, told


def _with_base(node: Node, scores: Tensor) -> Tensor:
    base = _either(node, "base_values")
    if not base.size:
        return scores
    if base.size != scores.shape[-1]:
        raise node.refuse(f"{base.size} base values do not fit {scores.shape[-1]} scores")
    result: Tensor = node.emit("add", scores, node.const(base, scores.dtype))
    return result


@converter("TreeEnsembleRegressor", domain=DOMAIN)
def regressor(node: Node) -> Tensor:
    x = as_float(node, node[0])
    forest, place = _by_ids(node)
    weights, told = _leaf_weights(node, "target", place, int(node.attr("n_targets", 1)))
    kind = node.attr("aggregate_function", "SUM")
    scores = _aggregated(node, _leaves(node, x, forest), weights, told, kind, "float32")
    return transformed(node, _with_base(node, scores))


@converter("TreeEnsembleClassifier", domain=DOMAIN)
def classifier(node: Node) -> tuple[Tensor, Tensor]:
    """One score for each class, and the class with the highest; or, for two classes, the score of one of them alone."""
    x = as_float(node, node[0])
    labels = class_labels(node, ("classlabels_int64s", "classlabels_strings"))
    forest, place = _by_ids(node)
    weights, told = _leaf_weights(node, "class", place, len(labels))
    names = node.const(labels, "int64")
    scores = _aggregated(node, _leaves(node, x, forest), weights, told, "SUM", "float32")
    if len(labels) > 2 or len(set(node.attr("class_ids"))) > 1:
        scores = _with_base(node, scores)
        best = node.emit("argmax", scores, axis=1)
        return node.emit("gather", names, best, axis=0), transformed(node, scores)
    alone = int(node.attr("class_ids")[0])
    base = _either(node, "base_values")
    if base.size > 1:
        raise node.refuse("two base values for one score are not supported")
    score = node.emit("slice", scores, axes=[1], starts=[alone], ends=[alone + 1])
    score = node.emit("scale", score, bias=float(base[0])) if base.size else score
    positive = bool((_either(node, "class_weights") >= 0).all())
    chosen = node.emit("greater_than", score, node.const(0.5 if positive else 0.0, "float32"))
    label = node.emit("gather", names, node.cast(node.emit("squeeze", chosen, axes=[1]), "int64"), axis=0)
    kind = node.attr("post_transform", "NONE")
    if kind not in ("NONE", "LOGISTIC") or (positive and kind != "NONE"):
        raise node.refuse(f"post_transform {kind!r} of one score for two classes is not supported")
    other = node.emit("scale", score, scale=-1.0, bias=1.0 if positive else 0.0)
    return label, transformed(node, node.emit("concat", other, score, axis=1))


# --- opset 5 ---------------------------------------------------------------------------------------------------------


@converter("TreeEnsemble", domain=DOMAIN, since=5)
def tree_ensemble(node: Node) -> Tensor:
    """Inner nodes and leaves have numbers of their own: here the leaves follow the inner nodes."""
    x = node[0]
    modes = np.asarray(node.attr("nodes_modes")).astype(int)
    count, leaf_count = len(modes), len(node.attr("leaf_targetids"))
    if modes.max(initial=0) > MEMBER:
        raise node.refuse(f"the mode {modes.max()} is unknown")

    def children(side: str) -> np.ndarray:
        is_leaf = np.asarray(node.attr(f"nodes_{side}leafs"), bool)
        return np.concatenate(
            [np.asarray(node.attr(f"nodes_{side}nodeids")) + count * is_leaf, count + np.arange(leaf_count)]
        )

    yes, no = children("true"), children("false")
    roots = np.asarray(node.attr("tree_roots"))
    alone = [r for r in roots if yes[r] == no[r] >= count]  # a tree that is one leaf
    tracks = np.asarray(node.attr("nodes_missing_value_tracks_true", []) or np.zeros(count), bool)

    def over_leaves(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values, np.zeros(leaf_count, values.dtype)])

    forest = _Forest(
        over_leaves(np.asarray(node.attr("nodes_featureids"))),
        over_leaves(np.asarray(node.attr("nodes_splits")).reshape(-1)),
        over_leaves(modes),
        yes,
        no,
        over_leaves(tracks),
        np.arange(count + leaf_count) >= count,
        np.array([yes[r] if r in alone else r for r in roots]),
        _members(node, modes, leaf_count),
    )
    targets = int(node.attr("n_targets"))
    weights, told = np.zeros((count + leaf_count, targets)), np.zeros((count + leaf_count, targets), bool)
    ids = np.asarray(node.attr("leaf_targetids"))
    if ids.min() < 0 or ids.max() >= targets:
        raise node.refuse(f"a leaf has a target outside of the {targets} targets")
    weights[count + np.arange(leaf_count), ids] = np.asarray(node.attr("leaf_weights")).reshape(-1)
    told[count + np.arange(leaf_count), ids] = True
    kind = ["AVERAGE", "SUM", "MIN", "MAX"][int(node.attr("aggregate_function", 1))]
    if int(node.attr("post_transform", 0)):
        raise node.refuse("post_transform is not supported here")
    return _aggregated(node, _leaves(node, x, forest), weights, told, kind, x.dtype)


def _members(node: Node, modes: np.ndarray, leaf_count: int) -> np.ndarray | None:
    """The members of each node's set: sets are separated by NaN, in the order of the nodes."""
    if not node.has("membership_values"):
        if (modes == MEMBER).any():
            raise node.refuse("membership_values are missing")
        return None
    sets: list[list[float]] = [[]]
    for value in np.asarray(node.attr("membership_values")).reshape(-1):
        sets.append([]) if np.isnan(value) else sets[-1].append(float(value))
    places = np.flatnonzero(modes == MEMBER)
    if len(sets) < len(places):
        raise node.refuse(f"{len(sets)} sets of members do not fit {len(places)} nodes")
    found = np.full((len(modes) + leaf_count, max(map(len, sets), default=0) or 1), np.nan)
    for place, members in zip(places, sets, strict=False):
        found[place, : len(members)] = members
    return found
