"""Hostile variants of ONNX models: of their bytes, and of their structure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.service.models.build import FLOAT, external, linear, perceptron

__all__ = ["mutants"]

HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -1, -(2**63), 0)
Change = Callable[[onnx.ModelProto, random.Random], None]


def mutants(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """(name of the mutation, content): every kind in turn, then again with other random choices."""
    kinds: list[Callable[[random.Random], bytes]] = [_flipped, _truncated, _spliced, _inserted, _too_deep]
    kinds += [_changed(each) for each in CHANGES]
    for n in range(count):
        make = kinds[n % len(kinds)]
        draw = random.Random(f"{seed} {n}")
        yield f"{getattr(make, 'kind', make.__name__)} {n}", make(draw)


def _base(draw: random.Random) -> onnx.ModelProto:
    return draw.choice([linear] * 3 + [perceptron] * 6 + [lambda: external()[0]])()


# --- bytes -------------------------------------------------------------------------------------------------------


def _flipped(draw: random.Random) -> bytes:
    content = bytearray(_base(draw).SerializeToString())
    for _ in range(draw.choice([1, 1, 2, 5, 20])):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    return bytes(content)


def _truncated(draw: random.Random) -> bytes:
    content = _base(draw).SerializeToString()
    return content[: draw.randrange(len(content))]


def _spliced(draw: random.Random) -> bytes:
    one, other = _base(draw).SerializeToString(), _base(draw).SerializeToString()
    return one[: draw.randrange(len(one))] + other[draw.randrange(len(other)) :]


def _inserted(draw: random.Random) -> bytes:
    content, at = _base(draw).SerializeToString(), draw.randrange(100)
    return content[:at] + draw.randbytes(draw.choice([1, 2, 9, 100])) + content[at:]


def _too_deep(draw: random.Random) -> bytes:
    """Graphs in attributes of nodes of graphs, deeper than the parser of protobuf goes."""
    content = b""
    for _ in range(draw.choice([40, 500, 3000])):
        for field in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            content = bytes([field << 3 | 2]) + _varint(len(content)) + content
    return b"\x08\x09\x3a" + _varint(len(content)) + content  # ModelProto.ir_version, graph


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 128:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


# --- structure ---------------------------------------------------------------------------------------------------


def _changed(change: Change) -> Callable[[random.Random], bytes]:
    def make(draw: random.Random) -> bytes:
        model = _base(draw)
        change(model, draw)
        return model.SerializeToString()

    make.kind = change.__name__  # type: ignore[attr-defined]
    return make


def huge_sizes(model: onnx.ModelProto, draw: random.Random) -> None:
    place = draw.choice([*model.graph.initializer, model.graph.input[0], model.graph.output[0]])
    if isinstance(place, TensorProto):
        del place.dims[:]
        place.dims.extend(draw.choice(HUGE) for _ in range(draw.randrange(1, 12)))
        return
    place.type.tensor_type.shape.SetInParent()
    for _ in range(draw.randrange(1, 70)):
        place.type.tensor_type.shape.dim.add().dim_value = draw.choice(HUGE)


def deep_nests(model: onnx.ModelProto, draw: random.Random) -> None:
    """Branches in branches, as deep as a protobuf can be."""
    depth = draw.choice([5, 15, 28])
    graph = onnx.GraphProto()
    graph.CopyFrom(_inner("innermost", [helper.make_node("Relu", ["x"], ["deep0"])], "deep0"))
    for n in range(1, depth):
        other = graph if n < 4 else _leaf(n)
        node = helper.make_node("If", ["flag"], [f"deep{n}"], then_branch=graph, else_branch=other)
        graph = _inner(f"level{n}", [node], f"deep{n}")
    model.graph.initializer.append(helper.make_tensor("flag", TensorProto.BOOL, [], [True]))
    model.graph.node.append(helper.make_node("If", ["flag"], ["deep"], then_branch=graph, else_branch=_leaf(0)))


def _inner(name: str, nodes: list[onnx.NodeProto], out: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(out, FLOAT, None)])


def _leaf(n: int) -> onnx.GraphProto:
    return _inner(f"leaf{n}", [helper.make_node("Tanh", ["x"], [f"leaf_out{n}"])], f"leaf_out{n}")


def cycles(model: onnx.ModelProto, draw: random.Random) -> None:
    nodes = list(model.graph.node)
    node = draw.choice(nodes)
    if node.input:
        node.input[0] = draw.choice([node.output[0], nodes[-1].output[0]])


def shuffled_nodes(model: onnx.ModelProto, draw: random.Random) -> None:
    nodes = list(model.graph.node)
    draw.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def external_paths(model: onnx.ModelProto, draw: random.Random) -> None:
    places = ["../../etc/passwd", "/etc/passwd", "/dev/zero", "/proc/self/mem", "file:///etc/passwd", "\0", "a" * 10**4]
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        del tensor.external_data[:]
        for key, value in (
            ("location", draw.choice(places)),
            ("offset", str(draw.choice(HUGE))),
            ("length", draw.choice([*map(str, HUGE), "x", ""])),
        ):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value


def strings(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = draw.choice(model.graph.initializer)
    tensor.ClearField("raw_data")
    tensor.data_type = TensorProto.STRING
    tensor.string_data.extend([b"a" * draw.choice([1, 10**5])] * draw.randrange(1, 20))


def element_types(model: onnx.ModelProto, draw: random.Random) -> None:
    number = draw.choice([-1, 0, 1, 7, 8, 9, 10, 14, 15, 16, 17, 21, 22, 23, 99, 2**31 - 1])
    if draw.random() < 0.5:
        draw.choice(model.graph.initializer).data_type = number
    else:
        model.graph.input[0].type.tensor_type.elem_type = number


def repeats(model: onnx.ModelProto, draw: random.Random) -> None:
    """A small tensor that becomes a huge one, at import or in a run."""
    count = draw.choice(HUGE)
    type, extra = draw.choice([("Tile", [count, count]), ("Expand", [count, 3]), ("ConstantOfShape", [count] * 3)])
    model.graph.initializer.append(helper.make_tensor("many", TensorProto.INT64, [len(extra)], extra))
    inputs = ["many"] if type == "ConstantOfShape" else [draw.choice(["x", model.graph.initializer[0].name]), "many"]
    _append(model, helper.make_node(type, inputs, ["bomb"], "bomb"))


def doublings(model: onnx.ModelProto, draw: random.Random) -> None:
    """A known value that doubles with every node."""
    model.graph.initializer.append(helper.make_tensor("grown0", TensorProto.INT64, [2], [1, 1]))
    for n in range(draw.choice([10, 40, 80])):
        model.graph.node.append(helper.make_node("Concat", [f"grown{n}"] * 2, [f"grown{n + 1}"], axis=0))


def ranges(model: onnx.ModelProto, draw: random.Random) -> None:
    for name, value in (("begin", 0), ("end", draw.choice(HUGE)), ("step", draw.choice([0, 1, -1]))):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [value]))
    _append(model, helper.make_node("Range", ["begin", "end", "step"], ["bomb"], "bomb"))


def endless_loops(model: onnx.ModelProto, draw: random.Random) -> None:
    """A loop over known values, which a reader may run at import."""
    going = helper.make_node("Identity", ["cond"], ["cond_out"])
    body = helper.make_graph(
        [going, helper.make_node("Add", ["v", "v"], ["v_out"])],
        "body",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, []),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, [2]),
        ],
        [
            helper.make_tensor_value_info("cond_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v_out", FLOAT, [2]),
        ],
    )
    model.graph.initializer.append(helper.make_tensor("trips", TensorProto.INT64, [], [draw.choice(HUGE)]))
    model.graph.initializer.append(helper.make_tensor("sure", TensorProto.BOOL, [], [True]))
    model.graph.initializer.append(helper.make_tensor("start", FLOAT, [2], [1.0, 2.0]))
    _append(model, helper.make_node("Loop", ["trips", "sure", "start"], ["bomb"], "bomb", body=body))


def missing_types(model: onnx.ModelProto, draw: random.Random) -> None:
    for value in draw.sample([*model.graph.input, *model.graph.output], 1 + draw.randrange(2)):
        if draw.random() < 0.5:
            value.ClearField("type")
        else:
            value.type.sequence_type.elem_type.tensor_type.elem_type = draw.choice([1, 7, 8])


def recursive_functions(model: onnx.ModelProto, draw: random.Random) -> None:
    """Functions that call themselves, each other, or the next one twice."""
    count = draw.choice([1, 2, 12])
    for n in range(count):
        again = (n + 1) % count if draw.random() < 0.5 else n + 1
        nodes = [helper.make_node(f"F{again}", ["a"], [f"o{k}"], domain="local") for k in range(2)]
        if again == count:
            nodes = [helper.make_node("Relu", ["a"], [f"o{k}"]) for k in range(2)]
        nodes.append(helper.make_node("Add", ["o0", "o1"], ["b"]))
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        model.functions.append(helper.make_function("local", f"F{n}", ["a"], ["b"], nodes, opsets))
    model.opset_import.append(helper.make_opsetid("local", 1))
    _append(model, helper.make_node("F0", ["x"], ["bomb"], "bomb", domain="local"))


def attributes(model: onnx.ModelProto, draw: random.Random) -> None:
    """An attribute of the operator, or of another one, with a strange value."""
    node = draw.choice(model.graph.node)
    known = [*onnx.defs.get_schema(node.op_type).attributes] or ["axis"]
    name = draw.choice([*known, *known, "axes", "body"])
    values = (draw.choice(HUGE), 1e38, float("nan"), "text", None, list(HUGE), [0.5] * 100, np.zeros(3).tolist())
    value = draw.choice(values)
    kept = [each for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    if value is None:
        node.attribute.add(name=name, type=draw.choice([*AttributeProto.AttributeType.values()]))
    else:
        node.attribute.append(helper.make_attribute(name, value))


def operators(model: onnx.ModelProto, draw: random.Random) -> None:
    """Another operator with as many inputs in place of one, or any other one."""
    node = draw.choice(model.graph.node)
    schemas = [each for each in onnx.defs.get_all_schemas() if each.domain == ""]
    alike = [each for each in schemas if each.min_input <= len(node.input) <= each.max_input]
    schema = draw.choice(schemas if draw.random() < 0.2 else alike)
    node.op_type = schema.name
    kept = [each for each in node.attribute if each.name in schema.attributes]
    del node.attribute[:]
    node.attribute.extend(kept)


def names(model: onnx.ModelProto, draw: random.Random) -> None:
    strange = ["", "@", "grad/w", "x", "\0", "é" * 200, "a" * 10**5, "0:x", "../x", "{", "loss", "w@GRAD", "label"]
    name, node = draw.choice(strange), draw.choice(model.graph.node)
    kind = draw.randrange(4)
    if kind == 0:
        node.output[0] = name
    elif kind == 1 and node.input:
        node.input[draw.randrange(len(node.input))] = name
    elif kind == 2:
        draw.choice(model.graph.initializer).name = name
    else:
        old, model.graph.input[0].name = model.graph.input[0].name, name
        for each in model.graph.node:
            each.input[:] = [name if n == old else n for n in each.input]


def versions(model: onnx.ModelProto, draw: random.Random) -> None:
    model.opset_import[0].version = draw.choice([*HUGE, 1, 6, 7, 12, 25, 99])
    model.ir_version = draw.choice([-1, 0, 1, 3, 9, 99, 2**40])


def many_nodes(model: onnx.ModelProto, draw: random.Random) -> None:
    last = "x"
    for n in range(draw.choice([2_000, 25_000])):
        model.graph.node.append(helper.make_node("Neg", [last], [f"n{n}"]))
        last = f"n{n}"
    model.graph.output[0].name = last


def many_ranks(model: onnx.ModelProto, draw: random.Random) -> None:
    axes = list(range(draw.choice([7, 9, 40])))
    model.graph.initializer.append(helper.make_tensor("new_axes", TensorProto.INT64, [len(axes)], axes))
    _append(model, helper.make_node("Unsqueeze", ["x", "new_axes"], ["bomb"], "bomb"))


def raw_data(model: onnx.ModelProto, draw: random.Random) -> None:
    tensor = draw.choice(model.graph.initializer)
    tensor.raw_data = draw.randbytes(draw.choice([0, 1, 3, 1000]))
    if draw.random() < 0.5:
        tensor.float_data.extend([1.0, float("nan")])


def twice(model: onnx.ModelProto, draw: random.Random) -> None:
    part = draw.choice([model.graph.node, model.graph.initializer, model.graph.input, model.graph.output])
    part.append(part[draw.randrange(len(part))])


def nothing_left(model: onnx.ModelProto, draw: random.Random) -> None:
    part = draw.choice(["node", "initializer", "input", "output", "opset_import"])
    (model if part == "opset_import" else model.graph).ClearField(part)


def _append(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Add the node, whose output becomes the output of the model."""
    model.graph.node.append(node)
    model.graph.output[0].name = node.output[0]
    model.graph.output[0].type.tensor_type.ClearField("shape")


CHANGES: tuple[Change, ...] = (
    huge_sizes, deep_nests, cycles, shuffled_nodes, external_paths, strings, element_types, repeats, doublings, ranges,
    endless_loops, missing_types, recursive_functions, attributes, operators, operators, names, versions, many_nodes,
    many_ranks, raw_data, twice, nothing_left,
)  # fmt: skip
