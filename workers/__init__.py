"""Sources, probing, decoding and the daemon that streams samples."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import fleet as fleet
    from . import media as media
    from .columns.huggingface import HFDataset as HFDataset
    from .columns.parquet import ParquetDataset as ParquetDataset
    from .energon.dataset import EnergonDataset as EnergonDataset
    from .energon.metadataset import open_metadataset as open_metadataset
    from .jsonl.dataset import JsonlDataset as JsonlDataset
    from .mds.dataset import MDSDataset as MDSDataset
    from .mixture.mixture import Mixture as Mixture
    from .selection.selection import Selection as Selection
    from .selection.selection import split_by_key as split_by_key
    from .sources.interface import Probe as Probe
    from .sources.interface import SampleError as SampleError
    from .sources.interface import Source as Source
    from .sources.plain import PlainSource as PlainSource
    from .sources.plain import as_source as as_source
    from .tar.dataset import TarDataset as TarDataset
    from .vision_language.token_layout import ByteTokenizer as ByteTokenizer
    from .vision_language.transform import VisionLanguage as VisionLanguage

# Each is imported when it is first used (PEP 562): a loop loads what it uses. "" for a sub-package.
_HOMES = {
    "ByteTokenizer": ".vision_language.token_layout",
    "EnergonDataset": ".energon.dataset",
    "HFDataset": ".columns.huggingface",
    "JsonlDataset": ".jsonl.dataset",
    "MDSDataset": ".mds.dataset",
    "Mixture": ".mixture.mixture",
    "ParquetDataset": ".columns.parquet",
    "PlainSource": ".sources.plain",
    "Probe": ".sources.interface",
    "SampleError": ".sources.interface",
    "Selection": ".selection.selection",
    "Source": ".sources.interface",
    "TarDataset": ".tar.dataset",
    "VisionLanguage": ".vision_language.transform",
    "as_source": ".sources.plain",
    "fleet": "",
    "media": "",
    "open_metadataset": ".energon.metadataset",
    "split_by_key": ".selection.selection",
}

__all__ = [*_HOMES]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name] or f".{name}", __name__)
        attribute = globals()[name] = getattr(home, name) if _HOMES[name] else home
        return attribute
