"""What can be told about a program before it runs: cost, memory, and where its gradients come from."""

from core.analysis.numeric import Comparison, check_gradients
from core.analysis.report import analyse
from core.cost.memory import Memory, predict_memory
from core.cost.work import count_work

__all__ = ["Comparison", "Memory", "analyse", "check_gradients", "count_work", "predict_memory"]
