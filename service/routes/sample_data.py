"""The sample dataset and the sample upload of the documentation."""

from __future__ import annotations

import asyncio

from fastapi import Request

from service.caller import tenant
from service.datasets.ingest import Named
from service.datasets.options import Options
from service.formats.json_tensors import decode_all
from service.routes.state import datasets, ingest, uploads
from service.schemas.examples import SAMPLE_COLUMNS, SAMPLE_CSV, SAMPLE_DATASET, SAMPLE_UPLOAD

__all__ = ["restore_dataset", "restore_upload"]


async def restore_dataset(request: Request) -> None:
    """Store the sample dataset for the caller, unless it is there. Raises HttpProblem."""
    owner = tenant()
    if await datasets(request).get(owner, SAMPLE_DATASET) is None:
        columns = decode_all(SAMPLE_COLUMNS, pointer="/columns")
        async with ingest(request).folder() as folder:
            await ingest(request).of_columns(owner, columns, Options("safetensors"), Named("sample"), folder)


async def restore_upload(request: Request) -> None:
    """Store the sample upload for the caller, unless it is there with its bytes. Raises HttpProblem."""
    owner = tenant()
    found = await uploads(request).get(owner, SAMPLE_UPLOAD)
    if found is not None and found.dataset is None:
        return
    if found is not None:
        await uploads(request).delete(owner, SAMPLE_UPLOAD)
    content = SAMPLE_CSV.encode()
    await uploads(request).create(owner, len(content), id=SAMPLE_UPLOAD)
    async with ingest(request).folder() as folder:
        await asyncio.to_thread((folder / "part").write_bytes, content)
        await uploads(request).append(owner, SAMPLE_UPLOAD, 0, folder / "part", len(content))
