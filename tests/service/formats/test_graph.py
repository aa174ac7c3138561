"""The data of a program's graph: kinds of nodes, types on edges, links between ops and adjoints; and its placement."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from core.backward.append_backward import append_backward
from core.wire import read
from core.wire.samples import SAMPLES
from service.formats.graph import LEGEND, drawn
from service.formats.graph_text import COLOURS
from service.routes.system import STATIC
from tests.nests import nest
from tests.programs import Sketch


def graph_of(s: Sketch, form: str = "application/json") -> Any:
    answer = append_backward(read(s.document), "loss").as_document()
    text = drawn(json.dumps(answer).encode(), form, "Program", "static").decode()
    return json.loads(text) if form == "application/json" else text


def line() -> Sketch:
    s = Sketch()
    s.feed("x", [[1.0, 2.0], [3.0, 4.0]])
    s.param("w", [0.5, 0.9])
    s.op("mul", "x", "w", out="y")
    s.op("tanh", "y", out="z")
    s.total("z")
    return s


def blocks(graph: dict[str, Any]) -> Iterator[dict[str, Any]]:
    waiting = [graph]
    for each in waiting:  # the loop appends to the list that it walks
        yield each
        waiting += each["blocks"]


def nodes(graph: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {node["id"]: node for block in blocks(graph) for node in block["nodes"]}


def test_each_kind_of_node_has_a_colour_and_a_line_in_the_legend():
    assert COLOURS.keys() == LEGEND.keys()
    kinds = {node["kind"] for s in (line(), nest("while", 2)) for node in nodes(graph_of(s)).values()}
    assert kinds == COLOURS.keys() - {"state"}


def test_parameters_feeds_the_loss_and_each_gradient_have_nodes_of_their_own():
    graph = graph_of(line())
    by_kind = {(node["kind"], node["label"]): node for node in graph["nodes"]}

    assert {("feed", "x"), ("parameter", "w"), ("loss", "loss"), ("gradient", "w@GRAD")} <= by_kind.keys()
    assert by_kind["gradient", "w@GRAD"]["of"] == [by_kind["parameter", "w"]["id"]]
    assert by_kind["gradient", "w@GRAD"]["outputs"] == ["w@GRAD: float64[2]"]
    into = {edge["to"]: edge for edge in graph["edges"]}
    assert into[by_kind["loss", "loss"]["id"]]["variable"] == "loss"
    assert nodes(graph)[into[by_kind["gradient", "w@GRAD"]["id"]]["from"]]["kind"] == "backward"


def test_edges_have_types():
    edges = {(e["variable"], e["type"]) for e in graph_of(line())["edges"]}
    assert {("x", "float64[2, 2]"), ("w", "float64[2]"), ("y", "float64[2, 2]"), ("w@GRAD", "float64[2]")} <= edges


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_each_edge_of_nested_blocks_has_the_type_that_the_program_has(name):
    backward = append_backward(read(SAMPLES[name].document), "loss")
    text = json.dumps(backward.as_document()).encode()
    graph = json.loads(drawn(text, "application/json", "", ""))
    known: dict[str, set[str]] = {}
    waiting = [backward.program.block]
    for block in waiting:  # the loop appends to the list that it walks
        for variable, type in block.types.items():
            known.setdefault(variable, set()).add(str(type))
        waiting += [v for op in block.ops for v in op.attrs.values() if hasattr(v, "ops")]

    edges = [e for block in blocks(graph) for e in block["edges"] if e["variable"]]
    assert edges
    for edge in edges:
        shown = edge["type"].replace("2 nested stacks of", "stack of stack of")
        assert shown in known[edge["variable"]], edge


def test_each_adjoint_is_linked_to_its_op_inside_blocks_too():
    s = Sketch()
    s.param("w", [0.5, 0.9])
    s.op("assign", "w", out="h")
    with s.repeat(2):
        s.op("tanh", s.op("mul", "h", "w"), out="h")
    s.total("h")
    graph = graph_of(s)
    every = nodes(graph)
    inner = {op["id"]: block["id"] for block in blocks(graph) for op in block["nodes"]}

    (tanh,) = (n for n in every.values() if n["label"] == "tanh")
    adjoint = [n for n in every.values() if tanh["id"] in n.get("of", ())]
    assert {n["kind"] for n in adjoint} == {"backward"}
    assert {n["label"] for n in adjoint} >= {"square", "mul"}  # ct * (1 - tanh^2)
    assert {inner[n["id"]] for n in adjoint} != {inner[tanh["id"]]}
    for node in every.values():
        if node["kind"] == "backward":
            assert node.get("of"), node
            assert all(every[id]["kind"] == "forward" for id in node["of"])


def test_a_block_names_the_op_that_runs_it():
    graph = graph_of(nest("if_else", 3))
    every = nodes(graph)
    inner = [each for each in blocks(graph) if each["owner"]]
    assert len(inner) == 12
    assert {every[each["owner"]]["label"] for each in inner} == {"if_else"}


def test_the_graph_of_a_deep_nest_is_drawn_in_every_form():
    answer = json.dumps(append_backward(read(nest("if_else", 40).document), "loss").as_document()).encode()
    for form in ("application/json", "text/vnd.graphviz", "text/plain", "text/html"):
        assert drawn(answer, form, "", "")


def test_the_page_carries_its_data_and_no_text_can_end_it():
    s = line()
    answer = append_backward(read(s.document), "loss").as_document()
    answer["program"]["blocks"][0]["ops"][0]["type"] = "</script><script>alert(1)"
    page = drawn(json.dumps(answer).encode(), "text/html", "<b>", "static").decode()

    assert page.count("<script") == page.count("</script>") == 3
    assert "<b>" not in page
    (data,) = re.findall(r'<script type="application/json" id="graph">(.*?)</script>', page)
    assert "</script><script>alert(1)" in {node["label"] for node in json.loads(data)["nodes"]}


# --- placement: needs Node.js, but no browser --------------------------------------------------------------------

CHECK = """
import * as place from "%s";
let text = "";
for await (const piece of process.stdin) text += piece;
const graph = place.index(JSON.parse(text));
const first = place.firstUnfolded(graph);
const show = (unfolded) => {
  const placed = place.layout(graph, unfolded);
  return { nodes: [...placed.nodes.values()], ends: place.ends(placed).length, width: placed.width };
};
const open = show(new Set(graph.inner.keys())), folded = show(new Set());
const around = Object.fromEntries([...graph.nodes.keys()].map((id) => [id, place.around(graph, id)]));
console.log(JSON.stringify({ open, folded, first: [...first], around, found: place.search(graph, "TANH") }));
"""


def placed(s: Sketch) -> dict[str, Any]:
    script = CHECK % (STATIC / "graph-layout.js").as_uri()
    node = shutil.which("node")
    if node is None:
        pytest.skip("the placement is tested with Node.js")
    run = subprocess.run(
        [node, "--input-type=module", "-e", script],
        input=json.dumps(graph_of(s)).encode(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    return json.loads(run.stdout)


def box(node: dict[str, Any]) -> tuple[float, float, float, float]:
    return node["x"], node["y"], node["x"] + node["width"], node["y"] + node["height"]


def test_nodes_do_not_overlap_and_stand_inside_the_ops_around_them():
    found = placed(nest("while", 3))
    every = {node["id"]: node for node in found["open"]["nodes"]}
    inside = {id: set(around) for id, around in found["around"].items()}
    ids = list(every)
    for i, a in enumerate(ids):
        for owner in inside[a]:
            left, top, right, bottom = box(every[owner])
            assert left <= box(every[a])[0] and box(every[a])[2] <= right
            assert top <= box(every[a])[1] and box(every[a])[3] <= bottom
        for b in ids[i + 1 :]:
            if a in inside[b] or b in inside[a]:
                continue
            (l1, t1, r1, b1), (l2, t2, r2, b2) = box(every[a]), box(every[b])
            assert r1 <= l2 or r2 <= l1 or b1 <= t2 or b2 <= t1, (a, b)
    assert len(found["folded"]["nodes"]) < len(ids)
    assert found["first"], "a small program starts unfolded"


def test_the_backward_pass_stands_beside_the_forward_pass():
    found = placed(line())["open"]
    forward = [n for n in found["nodes"] if n["kind"] not in ("backward", "gradient")]
    backward = [n for n in found["nodes"] if n["kind"] in ("backward", "gradient")]
    assert max(box(n)[2] for n in forward) < min(n["x"] for n in backward)
    by_label = {(n["kind"], n["label"]): n for n in found["nodes"]}
    assert by_label["gradient", "w@GRAD"]["y"] == by_label["parameter", "w"]["y"]
    assert by_label["forward", "mul"]["y"] < by_label["forward", "tanh"]["y"] < by_label["loss", "loss"]["y"]


def test_a_large_program_starts_with_folded_blocks_and_search_finds_ops_inside_them():
    found = placed(nest("while", 12))
    assert not found["first"]
    assert len(found["folded"]["nodes"]) < 40 < 150 < len(found["open"]["nodes"])
    assert len(found["found"]) >= 12


def test_a_chain_of_2000_ops_is_placed():
    s = Sketch()
    s.param("w", [0.5, 0.9])
    s.op("tanh", "w", out="h0")
    for i in range(1, 600):
        s.op("tanh", f"h{i - 1}", out=f"h{i}")
    s.total("h599")
    found = placed(s)["open"]
    assert len(found["nodes"]) > 2000
    assert found["width"] < 1000
