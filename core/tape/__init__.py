"""Other ways in than a whole document: each yields the same blocks."""

from core.tape.answers import Appended, Evaluated, Gradients
from core.tape.steps import Steps
from core.tape.tape import Tape, TapeLimits

__all__ = ["Appended", "Evaluated", "Gradients", "Steps", "Tape", "TapeLimits"]
