"""Operations: calls that go on after their client got 202."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.schemas.members import Created, NextPage
from service.schemas.programs import Strict
from service.schemas.times import FormerEnd

__all__ = ["Accepted", "OperationPage", "OperationView"]


class Accepted(Strict):
    """The answer to a request whose call goes on as an operation."""

    id: str = Field(description="Id of the operation.")
    state: Literal["running"] = Field(description="State of the operation.")
    request: str = Field(description="Method and path of the request.")


class OperationView(Strict):
    """One operation."""

    id: str = Field(description="Id of the operation.")
    state: Literal["running", "succeeded", "failed", "canceled"] = Field(
        description="succeeded: the answer has a status below 400. failed: it is a problem. canceled: by a client."
    )
    request: str = Field(description="Method and path of the request.")
    status: int | None = Field(description="HTTP status of the answer; null while the call runs.")
    result: str | None = Field(description="Path of the answer; null while the call runs.")
    created: Created
    ended: float | None = Field(description="Time of the end, in seconds since 1970; null while the call runs.")
    expires_at: float | None = Field(
        description="Time at which the operation and its answer are deleted, in seconds since 1970; null while it runs."
    )
    expires: FormerEnd


class OperationPage(Strict):
    """One page of operations."""

    operations: list[OperationView] = Field(description="Operations, the newest first.")
    next_page_token: NextPage = None
