"""The kernel that writes rows of a table on an emulated GPU."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cupy", reason="the stand-in is made from the installed cupy")
from core.device import backend
from core.device.backend import DeviceBackend
from core.device.row_writer import row_updater_code
from tests.cupy_stand_in import installed
from tests.device.driver import EmulatedDriver
from tests.device.emulator import compiler
from tests.device.worker_gpu import backend_on

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler for the emulator of a GPU")


@pytest.mark.parametrize("nbytes", [1, 2, 6, 12, 40, 400])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_rows_are_written_to_their_places_and_nowhere_else(nbytes, count):
    r = np.random.default_rng(nbytes)
    table, values = (r.integers(0, 256, (n, nbytes), np.uint8) for n in (11, 4))
    rows = np.array([3, 4, 10, 0])
    wanted = table.copy()
    wanted[rows[:count]] = values[:count]
    with installed() as cupy:
        driver = EmulatedDriver(seed=3, xp=cupy)
        on_gpu, *others = (driver.xp.asarray(each) for each in (table, rows, values, np.array(count)))

        backend_on(driver).row_writer(nbytes)(*map(driver.address, (on_gpu, *others)))

        np.testing.assert_array_equal(on_gpu.get(), wanted)


@pytest.mark.parametrize(
    ("row_bytes", "rows", "blocks"), [(12, 0, 1), (12, 7, 1), (12, 50, 3), (64, 8, 1), (64, 10**6, 16)]
)
def test_an_update_has_as_many_blocks_as_it_may_have_rows_for(row_bytes, rows, blocks, monkeypatch):
    found = []
    made = lambda row_bytes, blocks, block: found.append(blocks) or row_updater_code(row_bytes, blocks, block)
    monkeypatch.setattr(backend, "row_updater_code", made)
    driver = EmulatedDriver()

    DeviceBackend(driver, driver.make, blocks=2, block=64).row_updater(row_bytes, rows * row_bytes)

    assert found == [blocks]
