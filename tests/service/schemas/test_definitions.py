"""Requests are defined once: the API reads, documents and runs the declarations of core."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from core.autodiff import hooks
from core.autodiff.hooks import ACTIONS, Action, Hook, Match
from core.backward.query import GradientQuery
from core.cost.budget import Budget
from core.ir.members import Kinds, members_of, names_of
from core.optim import clipping
from core.optim.clipping import CLIPPINGS, Clip, Clipping
from core.optim.loss_scaling import LossScale
from service.cli.options_page import options_page
from tests.core.autodiff.test_hooks import EXAMPLES
from tests.paths import ROOT
from tests.programs import Sketch, grads
from tests.service.openapi import whole
from tests.service.routes.test_options import asked, gradient

DOCUMENT: dict[str, Any] = json.loads((ROOT / "openapi" / "openapi.json").read_text())


def body(path: str) -> dict[str, Any]:
    """The properties of the JSON body of a POST in the stored document."""
    return properties(DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"])


def properties(schema: dict[str, Any]) -> dict[str, Any]:
    """The properties of a schema, or of the one that it refers to."""
    return whole(DOCUMENT, schema).get("properties", {})


def one_of(schema: dict[str, Any], member: str) -> dict[str, Any]:
    """The properties of the alternative of `schema` that has this member."""
    return next(found for each in schema["anyOf"] if member in (found := properties(each)))


QUERY, SESSION = body("/v1/gradients"), body("/v1/sessions")
HOOK = properties(QUERY["hooks"]["items"])
SCHEMAS = [
    (GradientQuery, QUERY),
    (GradientQuery, body("/v1/programs/{program_id}/backward")),
    (Hook, HOOK),
    (Hook, properties(SESSION["hooks"]["items"])),
    (Match, properties(HOOK["match"])),
    (Budget, one_of(QUERY["loop_memory"], "bytes")),
    (Clip, one_of(SESSION["clip"], "by")),
    (LossScale, one_of(SESSION["loss_scale"], "initial")),
]


@pytest.mark.parametrize(("kind", "properties"), SCHEMAS, ids=[kind.__name__ for kind, _ in SCHEMAS])
def test_the_stored_document_has_every_member_and_every_kind(kind, properties):
    assert set(names_of(kind)) <= set(properties)
    for each in members_of(kind):
        if each.kinds is not None:
            assert properties[each.name]["enum"] == list(each.kinds)
        assert each.member.text in properties[each.name]["description"]


@pytest.mark.parametrize(("module", "base", "table"), [(hooks, Action, ACTIONS), (clipping, Clipping, CLIPPINGS)])
def test_every_declared_kind_is_in_its_table(module: Any, base: type, table: Kinds[Any]):
    tree = ast.parse(inspect.getsource(module))
    declared = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and base.__name__ in {b.id for b in node.bases if isinstance(b, ast.Name)}
    }
    assert declared == {kind.__name__ for kind in table.values()}


def test_the_stored_page_equals_the_generated_one():
    assert (ROOT / "docs" / "options.md").read_text() == options_page(), "run `make catalogue`"


def line() -> Sketch:
    s = Sketch()
    s.param("w", [0.5, -0.7])
    s.total(s.op("square", "w"))
    return s


@pytest.mark.parametrize("do", EXAMPLES)
def test_an_action_has_the_same_effect_over_http_and_in_the_library(client, do):
    raw = {"match": {"variable": "w"}, "do": do, **EXAMPLES[do]}

    over_http = gradient(client, asked(line(), hooks=[raw]))

    assert over_http == pytest.approx(grads(line(), hooks=(Hook.read(raw),))["w"].tolist(), rel=1e-12)


NEW_KINDS = '''
import json
from dataclasses import dataclass
from typing import Annotated

import core.ops
from core.autodiff.hooks import ACTIONS, Action
from core.ir.members import Member
from core.optim.clipping import CLIPPINGS, Clipping


@ACTIONS.add
@dataclass(frozen=True, slots=True)
class Shift(Action):
    """Add `by_how_much` to each element."""

    name = "shift"
    by_how_much: Annotated[float, Member("Summand.", gt=0)]

    def emit(self, b, x):
        return b.make("scale", x, scale=1.0, bias=self.by_how_much)


@CLIPPINGS.add
@dataclass(frozen=True, slots=True)
class Halved(Clipping):
    """Halve every gradient."""

    name = "halved"

    def apply(self, gradients):
        return [g * 0.5 for g in gradients]


from core.compiler.compile import Clip, Optimizer, compile_gradient, compile_training
from core.wire import read
from service.app import create_app
from service.cli.options_page import options_page
from service.schemas.gradients import InlineGradientsRequest
from service.schemas.sessions import CreateSession
from service.settings import Settings
from service.worker.running import query_from
from tests.paths import ROOT
from tests.service.schemas.test_definitions import line

s = line()
hook = {"match": {"variable": "w"}, "do": "shift", "by_how_much": 10.0}
asked = InlineGradientsRequest.model_validate({"program": s.document, "loss": "loss", "hooks": [hook]})
query = query_from(asked.query())
session = CreateSession.model_validate({"program": s.document, "loss": "loss", "clip": {"by": "halved"}})
clip = Clip.read(session.clipping())
sgd = Optimizer("sgd", {"learning_rate": 1.0})
trained = compile_training(read(s.document), query_from(session.query()), sgd, clip)
print(json.dumps({
    "gradient": compile_gradient(read(s.document), query).step(s.values).gradients["w"].tolist(),
    "parameters": trained.step(s.values).parameters["w"].tolist(),
    "openapi": json.dumps(create_app(Settings()).openapi()),
    "page": options_page(),
}))
'''


def test_the_api_reads_runs_and_documents_a_kind_declared_only_in_core():
    ran = subprocess.run([sys.executable, "-c", NEW_KINDS], cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["gradient"] == pytest.approx([11.0, 8.6])  # 2 w + 10
    assert found["parameters"] == pytest.approx([0.0, 0.0])  # w - (2 w) / 2
    for text in (found["openapi"], found["page"]):
        assert all(word in text for word in ("shift", "by_how_much", "Summand.", "halved", "Halve every gradient."))
