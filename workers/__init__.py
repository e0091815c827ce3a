"""Sources, probing, decoding and the daemon that streams samples."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import fleet, media
    from .columns.huggingface import HFDataset
    from .columns.parquet import ParquetDataset
    from .energon.dataset import EnergonDataset
    from .energon.metadataset import open_metadataset
    from .jsonl.dataset import JsonlDataset
    from .mds.dataset import MDSDataset
    from .mixture.mixture import Mixture
    from .selection.selection import Selection, split_by_key
    from .sources.interface import PlainSource, Probe, SampleError, Source, as_source
    from .tar.dataset import TarDataset
    from .vision_language.token_layout import ByteTokenizer
    from .vision_language.transform import VisionLanguage

# Each is imported when it is first used (PEP 562): a loop loads what it uses. "" for a sub-package.
_HOMES = {
    "ByteTokenizer": ".vision_language.token_layout",
    "EnergonDataset": ".energon.dataset",
    "HFDataset": ".columns.huggingface",
    "JsonlDataset": ".jsonl.dataset",
    "MDSDataset": ".mds.dataset",
    "Mixture": ".mixture.mixture",
    "ParquetDataset": ".columns.parquet",
    "PlainSource": ".sources.interface",
    "Probe": ".sources.interface",
    "SampleError": ".sources.interface",
    "Selection": ".selection.selection",
    "Source": ".sources.interface",
    "TarDataset": ".tar.dataset",
    "VisionLanguage": ".vision_language.transform",
    "as_source": ".sources.interface",
    "fleet": "",
    "media": "",
    "open_metadataset": ".energon.metadataset",
    "split_by_key": ".selection.selection",
}

__all__ = [
    "ByteTokenizer",
    "EnergonDataset",
    "HFDataset",
    "JsonlDataset",
    "MDSDataset",
    "Mixture",
    "ParquetDataset",
    "PlainSource",
    "Probe",
    "SampleError",
    "Selection",
    "Source",
    "TarDataset",
    "VisionLanguage",
    "as_source",
    "fleet",
    "media",
    "open_metadataset",
    "split_by_key",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name] or f".{name}", __name__)
        found = globals()[name] = getattr(home, name) if _HOMES[name] else home
        return found
