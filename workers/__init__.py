"""Sources, probing, decoding and the daemon that streams samples."""

from .source import PlainSource, Probe, SampleError, Source, as_source
from .tar_dataset import TarDataset
from .tokenizer import ByteTokenizer
from .vision_language import VisionLanguage

__all__ = [
    "ByteTokenizer",
    "PlainSource",
    "Probe",
    "SampleError",
    "Source",
    "TarDataset",
    "VisionLanguage",
    "as_source",
]
