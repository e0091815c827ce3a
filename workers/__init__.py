"""Sources, probing, decoding and the daemon that streams samples."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import fleet as fleet, media as media
    from .columns.huggingface import HFDataset as HFDataset
    from .columns.parquet import ParquetDataset as ParquetDataset
    from .energon.dataset import EnergonDataset as EnergonDataset
    from .energon.metadataset import open_metadataset as open_metadataset
    from .jsonl.dataset import JsonlDataset as JsonlDataset
    from .mds.dataset import MDSDataset as MDSDataset
    from .mixture.mixture import Mixture as Mixture
    from .selection.selection import Selection as Selection, split_by_key as split_by_key
    from .sources.interface import Probe as Probe, SampleError as SampleError, Source as Source
    from .sources.plain import PlainSource as PlainSource, as_source as as_source
    from .tar.dataset import TarDataset as TarDataset
    from .vision_language.token_layout import ByteTokenizer as ByteTokenizer
    from .vision_language.transform import VisionLanguage as VisionLanguage

# The names by their modules, "" for sub-packages; imported when first used (PEP 562): a loop loads
# what it uses.
_NAMES = {
    "": "fleet media",
    ".columns.huggingface": "HFDataset",
    ".columns.parquet": "ParquetDataset",
    ".energon.dataset": "EnergonDataset",
    ".energon.metadataset": "open_metadataset",
    ".jsonl.dataset": "JsonlDataset",
    ".mds.dataset": "MDSDataset",
    ".mixture.mixture": "Mixture",
    ".selection.selection": "Selection split_by_key",
    ".sources.interface": "Probe SampleError Source",
    ".sources.plain": "PlainSource as_source",
    ".tar.dataset": "TarDataset",
    ".vision_language.token_layout": "ByteTokenizer",
    ".vision_language.transform": "VisionLanguage",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [*_HOMES]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = importlib.import_module(_HOMES[name] or f".{name}", __name__)
        attribute = globals()[name] = getattr(home, name) if _HOMES[name] else home
        return attribute
