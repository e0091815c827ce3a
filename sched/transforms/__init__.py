"""Transform programs: explicit communication, the end of a step."""

from .lowering import lower
from .step_end import with_step_end

__all__ = ["lower", "with_step_end"]
