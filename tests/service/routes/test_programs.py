"""Programs over HTTP: registering, listing, deleting, the backward pass, the graph, the op catalogue."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from typing import Any

import httpx
import pytest

from core.ir.registry import CONSTRUCTS, REGISTRY
from core.wire import read
from service.schemas.examples import EXAMPLES, REGRESSION, REGRESSION_ID, WHILE, WHILE_ID
from tests.core.backward.test_cases_lines import five_readers, nested


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    document = answer.json()
    assert document["code"] == code, document
    assert document["status"] == status
    return document


def fresh(name: str) -> dict[str, Any]:
    """A program that is not registered yet."""
    document = copy.deepcopy(REGRESSION)
    document["blocks"][0]["ops"][-1]["outputs"]["out"] = [name]
    return document


def test_88_the_same_program_gets_the_same_id_and_the_same_backward_text(client):
    document = {"program": five_readers().document}

    first, again = client.post("/v1/programs", json=document), client.post("/v1/programs", json=document)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    path = f"/v1/programs/{first.json()['id']}/backward?loss=loss"
    assert client.get(path).content == client.get(path).content


def test_the_signature_lists_inputs_and_size(client):
    signature = client.post("/v1/programs", json={"program": WHILE}).json()["signature"]

    assert [p["name"] for p in signature["parameters"]] == ["w"]
    assert [f["name"] for f in signature["feeds"]] == ["n"]
    assert signature["blocks"] == 2


def test_validate_only_stores_no_program(client):
    document = {"program": fresh("dry")}

    answer = client.post("/v1/programs?validate_only=true", json=document)

    assert answer.status_code == 200
    assert client.get(f"/v1/programs/{answer.json()['id']}").status_code == 404


def test_87_all_mistakes_are_reported_with_pointers_into_the_body(client):
    document = fresh("wrong")
    ops = document["blocks"][0]["ops"]
    ops[0]["type"] = "matmull"
    ops[1]["attrs"] = {"axes": 1}
    ops.append({"type": "tanh", "inputs": {"x": ["unknown"]}, "outputs": {"out": ["z"]}})

    found = problem(client.post("/v1/programs", json={"program": document}), 422, "invalid-program")

    places = {(e["pointer"].split("/ops/")[1][0], e["code"]) for e in found["errors"]}
    assert places == {("0", "unknown-op"), ("1", "bad-attr"), ("3", "unknown-variable")}
    assert all(e["pointer"].startswith("/program/blocks/0/ops/") for e in found["errors"])


@pytest.mark.parametrize("name", ["w@GRAD", "grad/w"])
def test_94_reserved_names_are_refused(client, name):
    found = problem(client.post("/v1/programs", json={"program": fresh(name)}), 422, "invalid-program")

    assert {e["code"] for e in found["errors"]} == {"reserved-name"}


def test_94_an_answer_can_be_sent_back_and_differentiated_again(client):
    answer = client.get(f"/v1/programs/{WHILE_ID}/backward?loss=loss").json()
    again = client.post("/v1/programs", json={"program": answer["program"]})
    assert again.status_code in (200, 201), again.text

    second = client.get(f"/v1/programs/{again.json()['id']}/backward", params={"targets": ["w@GRAD"], "inputs": ["w"]})

    assert second.status_code == 200, second.text
    assert second.json()["params_grads"][0][1] is not None
    read(second.json()["program"])


def test_93_200_nested_blocks_are_accepted_and_201_are_refused(client):
    assert client.post("/v1/programs", json={"program": nested(200).document}).status_code in (200, 201)
    found = problem(client.post("/v1/programs", json={"program": nested(201).document}), 422, "invalid-program")
    assert found["errors"][0]["code"] == "too-deep"


def test_the_pages_of_the_list_contain_every_program_once(client):
    for i in range(5):
        client.post("/v1/programs", json={"program": fresh(f"page{i}")})
    ids, token = [], ""
    while True:
        page = client.get("/v1/programs", params={"page_size": 3, "page_token": token}).json()
        assert len(page["programs"]) <= 3
        ids += [p["id"] for p in page["programs"]]
        token = page["next_page_token"]
        if token is None:
            break

    assert len(ids) == len(set(ids))
    assert EXAMPLES.keys() <= set(ids)


def test_a_program_can_be_read_and_deleted(client):
    id = client.post("/v1/programs", json={"program": fresh("gone")}).json()["id"]

    found = client.get(f"/v1/programs/{id}")
    assert found.json()["program"] == fresh("gone")
    assert client.get(f"/v1/programs/{id}", headers={"If-None-Match": found.headers["etag"]}).status_code == 304
    assert client.delete(f"/v1/programs/{id}").status_code == 204
    problem(client.get(f"/v1/programs/{id}"), 404, "not-found")
    problem(client.delete(f"/v1/programs/{id}"), 404, "not-found")


def test_the_backward_pass_of_a_loop_names_its_forward_block(client):
    answer = client.get(f"/v1/programs/{WHILE_ID}/backward?loss=loss").json()

    blocks = answer["program"]["blocks"]
    assert blocks[2]["forward_block_idx"] == 1
    assert answer["params_grads"] == [["w", "w@GRAD"]]
    assert answer["grad_to_var"]["w@GRAD"] == "w"
    assert answer["backward_ops"][-1]["forward_type"] == "while"


def test_an_error_names_an_unknown_loss(client):
    found = client.get(f"/v1/programs/{WHILE_ID}/backward?loss=unknown")

    assert found.status_code == 422
    assert "unknown" in found.json()["detail"]
    problem(client.get(f"/v1/programs/{WHILE_ID}/backward"), 422, "invalid-request")


GRAPH = f"/v1/programs/{WHILE_ID}/graph?loss=loss"


def test_the_graph_has_clusters_and_colours_backward_ops(client):
    text = client.get(GRAPH, headers={"Accept": "text/vnd.graphviz"}).text
    assert text.count("subgraph cluster_") == 3
    assert "#fee2c8" in text and "#dbeafe" in text
    if dot := shutil.which("dot"):
        subprocess.run([dot, "-Tsvg"], input=text.encode(), check=True, capture_output=True)

    mermaid = client.get(GRAPH, headers={"Accept": "text/plain"}).text
    assert mermaid.startswith("flowchart") and mermaid.count("subgraph") == 3 == len(re.findall(r"\bend\b", mermaid))

    graph = client.get(GRAPH).json()
    assert {n["kind"] for n in graph["nodes"]} == {"parameter", "feed", "forward", "loss", "backward", "gradient"}
    assert len(graph["blocks"]) == 2
    problem(client.get(GRAPH, headers={"Accept": "image/png"}), 406, "not-acceptable")


def test_the_graph_page_loads_only_vendored_files(client):
    page = client.get(GRAPH, headers={"Accept": "text/html"})

    assert "http:" not in page.text.replace("http://www.w3.org", "") and "https:" not in page.text
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for source in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        file = client.get(httpx.URL(GRAPH).join(source).path)
        assert file.status_code == 200
        for imported in re.findall(r'from "\./([^"]+)"', file.text):
            assert client.get(f"/static/{imported}").headers["content-type"].startswith("text/javascript")


def test_the_graph_of_a_program_without_a_backward_pass_has_types(client):
    graph = client.get(f"/v1/programs/{WHILE_ID}/graph").json()
    assert {n["kind"] for n in graph["nodes"]} == {"parameter", "feed", "forward"}
    assert all(edge["type"] for edge in graph["edges"] if edge["variable"])


def test_the_service_serves_all_files_of_the_docs_page(client):
    page = client.get("/docs")

    assert page.status_code == 200
    for source in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        assert client.get(f"/{source}").status_code == 200


@pytest.mark.parametrize("name", ["..%2fapp.py", "nothing.js", "README.md", "%00.js"])
def test_the_service_serves_only_vendored_files(client, name):
    assert client.get(f"/static/{name}").status_code in (404, 422)


def test_the_catalogue_lists_and_describes_every_op(client):
    listed, token = [], ""
    while token is not None:
        page = client.get("/v1/ops", params={"page_size": 200, "page_token": token}).json()
        listed += [op["type"] for op in page["ops"]]
        token = page["next_page_token"]
    assert listed == sorted(REGISTRY.keys() | CONSTRUCTS.keys())
    assert page["total"] == len(listed) == sum(page["families"].values())
    for name in listed:
        detail = client.get(f"/v1/ops/{name}").json()
        assert detail["documentation"] and detail["attributes"]["type"] == "object"
        assert (detail["no_gradient"] is None) == detail["differentiable"]
    problem(client.get("/v1/ops/nonsense"), 404, "not-found")


def test_health_workers_limits_and_metrics_can_be_read(client):
    assert client.get("/healthz/live").json()["status"] == "alive"
    ready = client.get("/healthz/ready").json()
    assert ready["status"] == "ready" and all(c["ok"] for c in ready["checks"].values())
    assert {w["state"] for w in client.get("/v1/workers").json()["workers"]} <= {"idle", "busy"}
    assert client.get("/v1").json()["limits"]["blocks"] == 256
    assert "http_server_request_duration_seconds" in client.get("/metrics").text


def test_the_programs_of_the_documentation_are_registered(client):
    assert client.get(f"/v1/programs/{REGRESSION_ID}").json()["program"] == REGRESSION


def test_cloning_a_backward_program_gives_its_forward_program(client):
    stored = client.post("/v1/programs", json={"program": WHILE}).json()["id"]
    answer = client.get(f"/v1/programs/{stored}/backward", params={"loss": "loss"}).json()["program"]
    trained = client.post("/v1/programs", json={"program": answer}).json()["id"]
    clone = client.post(f"/v1/programs/{trained}/clone", json={"for_test": True})

    assert clone.status_code in (200, 201), clone.text
    types = clone.json()["signature"]["op_types"]
    assert types == client.get(f"/v1/programs/{stored}").json()["signature"]["op_types"]
    assert client.post(f"/v1/programs/{trained}/clone", json={"for_test": True}).status_code == 200
