"""The form of a dataset in the database, and its id."""

import asyncio
import hashlib

from service.datasets import Column, Dataset, Datasets, dataset_id
from service.store import tables
from service.store.store import Store
from tests.service.prepared import prepared

SHA = hashlib.sha256(b"content").hexdigest()
DATASET = Dataset(
    dataset_id(SHA),
    "iris",
    f"datasets/{SHA}",
    150,
    (
        Column("x", "float32", (4,), None, {"nan": 0, "min": 0.1, "max": 7.9, "mean": 3.4}),
        Column("kind", "int64", (), ("setosa", "virginica")),
    ),
    3000,
    SHA,
    1e9,
    2e9,
    {"team": "a"},
)


def test_a_dataset_is_read_as_it_was_stored_and_by_its_tenant_alone(tmp_path):
    async def scenario():
        store = Store(tmp_path)
        await store.open()
        datasets = Datasets(store, prepared(str(tmp_path / "objects")), tmp_path)
        await store.write(lambda c: c.execute(tables.datasets.insert(), DATASET.row("a")))
        await store.write(lambda c: c.execute(tables.datasets.insert(), DATASET.row("b")))
        found = await datasets.get("a", DATASET.id), await datasets.get("c", DATASET.id)
        await store.close()
        return found

    assert asyncio.run(scenario()) == (DATASET, None)


def test_the_id_depends_on_the_content_alone():
    assert dataset_id(SHA) == dataset_id(SHA) != dataset_id(hashlib.sha256(b"other").hexdigest())
    assert len(dataset_id(SHA)) == 30
