"""The latency of row kernels: how long a thread waits for loads and reductions that follow each other.

Few rows on few threads take as long as these waits, whatever the rates of the device are.
"""

from __future__ import annotations

from core.codegen.sweeps import sweeps
from core.device.column_sums import column_sums
from core.device.row_teams import at_once, columns_of, groups_of, teams_of, width_of
from core.device.rules import Rules
from core.device.threads import Threads
from core.plan.instructions import Rows

__all__ = ["row_waits"]


def row_waits(each: Rows, threads: Threads, rules: Rules) -> float:
    """Seconds that the thread with the most rows or elements of a row kernel waits."""
    kernel, everything = each.kernel, range(len(each.kernel.code))
    if not any(i.kind in ("load", "lookup") for i in kernel.code):
        return 0.0
    reduced = any(i.kind == "reduce" and kernel.code[i.args[0]].full for i in kernel.code)
    if not reduced and not any(i.kind == "accumulate" for i in kernel.code):
        trips = -(-kernel.rows * kernel.inner // threads.total)
        return _waits(trips, at_once(each, everything, trips)) * rules.load_wait
    columns = column_sums(each, threads)
    if columns is not None:
        trips = -(-columns.rows // columns.parts)
        units = -(-columns.parts * columns.columns // threads.total)
        return units * _waits(trips, at_once(each, everything, trips)) * rules.load_wait
    width, groups, teams = width_of(each, threads), groups_of(each, threads, False), teams_of(each, threads)
    rows = -(-kernel.rows // teams) if groups is None else -(-groups.groups // teams) * groups.rows
    more = 0
    if not columns_of(each, width):
        trips = -(-kernel.inner // width)
        counts = [at_once(each, sweep.along, trips) for sweep in sweeps(kernel.code, (), 1) if sweep.along]
        more = sum(_waits(trips, count) - 1 for count in counts)
    return rows * (rules.row_wait + more * rules.load_wait)


def _waits(trips: int, count: int) -> int:
    """How often a thread waits that has `count` of `trips` elements at once, and the rest one after the other."""
    return trips // count + trips % count
