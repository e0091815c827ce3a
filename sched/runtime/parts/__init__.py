"""Define what a part of the model is to the executor: something that runs passes of some kinds."""

from .interface import Given, Made, ModelPart
from .step_data import MicrobatchData, StepData, TensorSpec

__all__ = ["Given", "Made", "MicrobatchData", "ModelPart", "StepData", "TensorSpec"]
