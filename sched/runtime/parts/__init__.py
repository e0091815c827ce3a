"""Define what a part of the model is to the executor: something that runs passes of some kinds."""

from .interface import Given, Made, ModelPart
from .joints import Joint, pack
from .step_data import ELSEWHERE, MicrobatchData, StepData, TensorSpec

__all__ = [
    "ELSEWHERE",
    "Given",
    "Joint",
    "Made",
    "MicrobatchData",
    "ModelPart",
    "StepData",
    "TensorSpec",
    "pack",
]
