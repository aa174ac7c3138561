"""Other ways in than a whole document: each yields the same blocks."""

from core.frontends.steps import Steps
from core.frontends.tape import Evaluated, Gradients, Tape, TapeLimits

__all__ = ["Evaluated", "Gradients", "Steps", "Tape", "TapeLimits"]
