"""From a block to a plan: plain data that a code generator reads. See `data` for what a plan is."""

from core.plan.arena import Arena, arrange
from core.plan.build import plan_block
from core.plan.data import Plan
from core.plan.lowering import Target, Unsupported

__all__ = ["Arena", "Plan", "Target", "Unsupported", "arrange", "plan_block"]
