"""Other ways in than a whole document: each yields the same blocks."""

from core.frontends.answers import Appended, Evaluated, Gradients
from core.frontends.steps import Steps
from core.frontends.tape import Tape, TapeLimits

__all__ = ["Appended", "Evaluated", "Gradients", "Steps", "Tape", "TapeLimits"]
