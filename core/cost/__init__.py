"""What a block takes before it runs: its memory, its work, and the memory policies that fit a budget."""

from core.cost.memory import Memory, nested_runs, predict_memory
from core.cost.work import count_work

__all__ = ["Memory", "count_work", "nested_runs", "predict_memory"]
