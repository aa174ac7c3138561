"""From a block to a plan: plain data that a code generator reads. See `data` for what a plan is."""

from core.plan.arena import ArenaMap, arrange
from core.plan.build import plan_block
from core.plan.plan import Plan
from core.plan.target import Target
from core.plan.unsupported import Unsupported

__all__ = ["ArenaMap", "Plan", "Target", "Unsupported", "arrange", "plan_block"]
