"""Sources, probing, decoding and the daemon that streams samples."""

from .sources.interface import PlainSource, Probe, SampleError, Source, as_source
from .tar.dataset import TarDataset
from .vision_language.tokenizer import ByteTokenizer
from .vision_language.transform import VisionLanguage

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
