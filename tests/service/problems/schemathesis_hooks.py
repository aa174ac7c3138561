"""Extensions of schemathesis for this service: safetensors bodies, and checks of answers.

`schemathesis` imports this module if SCHEMATHESIS_HOOKS names it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import schemathesis
from hypothesis import strategies as st

from service.formats import safetensors as tensorfile
from service.schemas.examples import REGRESSION_FEEDS, REGRESSION_PARAMETERS

MAY_FAIL = (503, 504, 507)  # no capacity, no time, no space

TENSORS = {
    name: np.array(each["data"], each["dtype"]).reshape(each["shape"])
    for name, each in {**REGRESSION_FEEDS, **REGRESSION_PARAMETERS}.items()
}
DOCUMENTS = st.dictionaries(
    st.sampled_from(["loss", "fetch", "seq", "return_gradients", "batches", "deadline_s", "parameter_list"]),
    st.one_of(st.just("loss"), st.just(["prediction"]), st.integers(-1, 5), st.none(), st.just("all")),
    max_size=3,
)


@st.composite
def files(draw: Any) -> bytes:
    """Tensors of the regression, some of them missing or of another dtype, with a request in the metadata."""
    names = draw(st.lists(st.sampled_from([*TENSORS, "other"]), unique=True))
    dtype = draw(st.sampled_from(["float32", "float32", "float64", "int64"]))
    tensors = {name: TENSORS.get(name, np.ones(2)).astype(dtype) for name in names}
    whole = tensorfile.pack(tensors, draw(DOCUMENTS), key="request")
    cut = draw(st.integers(0, len(whole)))
    return whole if draw(st.integers(0, 3)) else whole[:cut]


schemathesis.openapi.media_type("application/x-safetensors", files())


@schemathesis.check
def problem_documents(ctx: Any, response: Any, case: Any) -> None:
    """No answer is a 500, and every refusal is a problem document with its own status."""
    status = response.status_code
    assert status < 500 or status in MAY_FAIL, f"status {status}: {response.text[:2000]}"
    if status >= 400 and "/healthz/" not in case.path:
        kind = response.headers["content-type"][0]
        assert kind.startswith("application/problem+json"), f"status {status} with {kind}"
        if case.method == "HEAD":
            return
        document = response.json()
        assert document["status"] == status
        assert document["code"] and document["request_id"]
