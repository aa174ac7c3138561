"""The walk over a graph: scopes, nodes, functions, and the report of refused nodes."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto

from core.ir.errors import CoreError, ExecutionError, InvalidProgram, Problem, ProgramError
from core.ir.stop import poll
from core.onnx.reading.arrays import array_of, is_trainable_dtype, name_of_array, onnx_dtype
from core.onnx.reading.draft import Draft
from core.onnx.reading.node import Node, Refused
from core.onnx.reading.registry import find
from core.onnx.reading.values import Array, Env, Initial, List, Maybe, Poison, Tensor, Value

__all__ = ["AlreadyRefused", "GraphReader"]

MOST_PROBLEMS = 100
DEEPEST = 64
"""The most graphs and functions inside each other."""
MOST_NODES = 60_000
"""The most nodes that are read. A node counts for each call of its function and each reading of its loop."""
_WRONG = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of a converter that meets a malformed attribute or input."""


class AlreadyRefused(Exception):
    """A graph whose problem is already reported."""


class GraphReader:
    """Reads nodes into `draft`. Refused nodes are added to `problems`, and reading goes on.

    opsets:    version of each domain. functions: the functions of the model, by domain, name and overload.
    states:    names of initializers that training does not change.
    trainable: the names of the initializers that are parameters, or None for all floats of rank 1 and above.
    """

    def __init__(
        self,
        draft: Draft,
        opsets: Mapping[str, int],
        functions: Iterable[FunctionProto] = (),
        states: Iterable[str] = (),
        trainable: Iterable[str] | None = None,
    ) -> None:
        self.draft = draft
        self.opsets = dict(opsets)
        self.functions = {(_domain(f.domain), f.name, f.overload): f for f in functions}
        self.states = frozenset(states)
        self.trainable = None if trainable is None else frozenset(trainable)
        self.problems: list[Problem] = []
        self._depth = 0
        self._left = MOST_NODES
        self._path: list[str] = []

    # --- graphs ------------------------------------------------------------------------------------------------

    def initialisers(self, graph: GraphProto, env: Env) -> None:
        """Define the initializers of `graph` in `env`."""
        for each in graph.initializer:
            try:
                env[each.name] = self._initial(each)
            except ProgramError as error:
                env[each.name] = Poison()
                self.report(f"initializer {each.name!r}", error)
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            env[name] = Poison()
            self.report(f"initializer {name!r}", Refused("sparse tensors are not supported"))

    def _initial(self, tensor: onnx.TensorProto) -> Tensor:
        array = array_of(tensor)
        dtype = name_of_array(array)
        if tensor.name in self.states:
            return self.draft.initial(Initial(tensor.name, array, "state"))
        trains = array.ndim > 0 if self.trainable is None else tensor.name in self.trainable
        if is_trainable_dtype(dtype) and trains:
            return self.draft.initial(Initial(tensor.name, array, "parameter"))
        return self.draft.constant(array, tensor.name)

    def subgraph(self, graph: GraphProto, env: Env, inputs: Sequence[Value] = ()) -> list[Value]:
        """The outputs of an inner graph that is read into the current block. `inputs` are the values of its inputs.

        Raises AlreadyRefused if a node that an output needs is refused.
        """
        if len(inputs) != len(graph.input):
            raise Refused(f"the graph {graph.name!r} has {len(graph.input)} inputs, not {len(inputs)}")
        inner: Env = ChainMap({}, env)  # type: ignore[arg-type]
        inner.update((each.name, value) for each, value in zip(graph.input, inputs, strict=True))
        self.initialisers(graph, inner)
        self._enter()
        try:
            self.nodes(graph.node, inner)
        finally:
            self._depth -= 1
        found = [self.lookup(inner, each.name) for each in graph.output]
        if any(isinstance(each, Poison) for each in found):
            raise AlreadyRefused
        return [each for each in found if each is not None]

    def lookup(self, env: Env, name: str) -> Value | None:
        if name not in env:
            raise Refused(f"no value {name!r} is visible here")
        return env[name]

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > DEEPEST:
            self._depth -= 1
            raise Refused(f"graphs and functions are nested more than {DEEPEST} deep")

    # --- nodes -------------------------------------------------------------------------------------------------

    def nodes(self, nodes: Iterable[NodeProto], env: Env) -> None:
        for number, proto in enumerate(nodes):
            poll()
            self._left -= 1
            if self._left < 0:
                message = f"more than {MOST_NODES} nodes, counting each call of a function and each reading of a loop"
                raise InvalidProgram([Problem("limit_exceeded", message)])
            place = _place(proto, number)
            self._path.append(place)
            first = len(self.draft.block.ops)
            try:
                results = self._node(proto, env)
                self._define(proto, env, results, first)
            except AlreadyRefused:
                self._poison(proto, env)
            except InvalidProgram:
                raise
            except (CoreError, ExecutionError) as error:
                self._poison(proto, env)
                self.report(place, error)
            except _WRONG as error:
                self._poison(proto, env)
                self.report(place, Refused(f"its inputs or attributes cannot be read: {error}"))
            finally:
                self._path.pop()

    def _node(self, proto: NodeProto, env: Env) -> Sequence[Value | None]:
        inputs = [None if not name else self.lookup(env, name) for name in proto.input]
        if any(isinstance(each, Poison) for each in inputs):
            raise AlreadyRefused
        domain = _domain(proto.domain)
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is not None:
            return self._call(function, proto, inputs, self.opsets)
        if domain not in self.opsets:
            raise Refused(f"the model imports no operator set for the domain {domain or 'ai.onnx'!r}")
        opset = self.opsets[domain]
        converter = find(domain, proto.op_type, opset)
        node = Node(proto, inputs, opset, self, env)
        if converter is not None:
            results = converter(node)
            return [results] if not isinstance(results, tuple | list) else results
        return self.standard_function(node)

    def _define(self, proto: NodeProto, env: Env, results: Sequence[Value | None], first: int) -> None:
        """Give the results the names of the node's outputs, and name the ops between after the first of them."""
        names = list(proto.output)
        if len(results) < len(names) and any(names[len(results) :]):
            raise Refused(f"output {len(results)} ({names[len(results)]!r}) is not supported")
        fresh = {
            id(label): label
            for op in self.draft.block.ops[first:]
            for labels in op.outputs.values()
            for label in labels
        }
        base = next((n for n in names if n), proto.op_type)
        for name, value in zip(names, results, strict=False):
            if not name:
                continue
            if value is None:
                raise Refused(f"output {name!r} is not supported")
            env[name] = value
            label = getattr(value, "label", None)
            if label is not None and id(label) in fresh:
                label.hint, label.wanted = name, True
                del fresh[id(label)]
        for label in fresh.values():
            if not label.wanted and "." not in label.hint and "/" not in label.hint:
                label.hint = f"{base}.{label.hint}"

    @staticmethod
    def _poison(proto: NodeProto, env: Env) -> None:
        env.update((name, Poison()) for name in proto.output if name)

    def report(self, place: str, error: CoreError) -> None:
        """Add a problem. Raises InvalidProgram if there are too many."""
        within = " in ".join(reversed(self._path[:-1])) if len(self._path) > 1 else ""
        message = f"{place}{f' in {within}' if within else ''}: {error.message}"
        if all(each.message != message for each in self.problems):
            self.problems.append(Problem(error.code, message, "", None, error.suggestion))
        if len(self.problems) >= MOST_PROBLEMS:
            raise InvalidProgram(self.problems)

    # --- functions ---------------------------------------------------------------------------------------------

    def _call(
        self, function: FunctionProto, call: NodeProto, inputs: Sequence[Value | None], opsets: Mapping[str, int]
    ) -> list[Value | None]:
        """The outputs of a function, whose nodes are read in place of the node that calls it."""
        env: Env = dict.fromkeys(function.input)
        env.update(zip(function.input, inputs, strict=False))
        given = {each.name: each for each in call.attribute}
        given = {each.name: each for each in function.attribute_proto} | given
        nodes = [_bound(node, given, set(env)) for node in function.node]
        outer, self.opsets = self.opsets, {_domain(each.domain): each.version for each in function.opset_import}
        for domain, version in opsets.items():
            self.opsets.setdefault(domain, version)
        self._enter()
        try:
            self.nodes(nodes, env)
        finally:
            self.opsets = outer
            self._depth -= 1
        found = [env.get(name) for name in function.output]
        if any(isinstance(each, Poison) for each in found):
            raise AlreadyRefused
        return found

    def standard_function(self, node: Node) -> Sequence[Value | None]:
        """The outputs of an operator by the function body that the ONNX standard gives for it. Raises Refused."""
        proto, domain = node.proto, _domain(node.proto.domain)
        try:
            schema = onnx.defs.get_schema(proto.op_type, node.opset, domain)
        except onnx.defs.SchemaError:
            raise Refused(_unknown(proto, node.opset)) from None
        body = _body(schema, node)
        if body is None:
            raise Refused("this operator is not supported")
        defaults = [each.default_value for each in schema.attributes.values() if each.default_value.name]
        known = {each.name for each in proto.attribute}
        call = NodeProto()
        call.CopyFrom(proto)
        call.attribute.extend(each for each in defaults if each.name not in known)
        return self._call(body, call, node.inputs, self.opsets)


def _unknown(proto: NodeProto, opset: int) -> str:
    """The reason why a node is refused whose operator ONNX does not have."""
    domain = _domain(proto.domain)
    if domain in ("", "ai.onnx.ml"):
        return f"ONNX has no operator {proto.op_type!r} in opset {opset}"
    if domain.startswith("com.microsoft"):
        way = "only onnxruntime has it; give the model as it was before onnxruntime optimized or quantized it"
    else:
        way = "give the model a function of this name and domain, or export it without the operator"
    return f"the operator {domain}.{proto.op_type} is not part of ONNX: {way}"


def _body(schema: Any, node: Node) -> FunctionProto | None:
    """The newest function body that `schema` has up to the node's opset."""
    versions = [v for v in schema.function_opset_versions if v <= node.opset]
    if versions:
        found = FunctionProto()
        found.CopyFrom(_parsed(schema.get_function_with_opset_version(max(versions))))
        return found
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= node.opset]
    if not versions:
        return None
    types = [_type_of(each).SerializeToString() for each in node.inputs]
    body = schema.get_context_dependent_function_with_opset_version(
        max(versions), node.proto.SerializeToString(), types
    )
    return _parsed(body) if body else None


def _parsed(body: Any) -> FunctionProto:
    if isinstance(body, FunctionProto):
        return body
    found = FunctionProto()
    found.ParseFromString(body if isinstance(body, bytes) else body.SerializeToString())
    return found


def _type_of(value: Value | None) -> TypeProto:
    """The ONNX type of a value. An empty type stands for an omitted input."""
    if isinstance(value, Tensor):
        shape = [None if n == -1 else n for n in value.shape]
        return onnx.helper.make_tensor_type_proto(onnx_dtype(value.dtype), shape)
    if isinstance(value, List):
        return onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(onnx_dtype(value.dtype), None))
    if isinstance(value, Array):
        array = value.type.array
        return onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(onnx_dtype(array.dtype), None))
    if isinstance(value, Maybe):
        return _type_of(value.held)
    return TypeProto()


def _bound(node: NodeProto, given: Mapping[str, AttributeProto], visible: set[str]) -> NodeProto:
    """A node of a function, with the attributes of the call in place of references to them.

    A reference to an attribute that the call does not give is left out.
    """
    found = NodeProto()
    found.CopyFrom(node)
    del found.attribute[:]
    for each in node.attribute:
        if not each.ref_attr_name:
            copied = found.attribute.add()
            copied.CopyFrom(each)
            graphs = [copied.g] if copied.type == AttributeProto.GRAPH else copied.graphs
            for graph in graphs:
                inner = [_bound(each, given, visible) for each in graph.node]
                del graph.node[:]
                graph.node.extend(inner)
        elif each.ref_attr_name in given:
            copied = found.attribute.add()
            copied.CopyFrom(given[each.ref_attr_name])
            copied.name = each.name
    return found


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _place(proto: NodeProto, number: int) -> str:
    name = repr(proto.name) if proto.name else f"#{number}"
    return f"node {name} ({proto.op_type})"
