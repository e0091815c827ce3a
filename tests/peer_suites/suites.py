"""The suites: where their files are in a checkout, and which classes take turns in them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoaderClass:
    """A class by the import that gives it."""

    module: str
    name: str


TORCH = LoaderClass("torch.utils.data", "DataLoader")
TORCHDATA = LoaderClass("torchdata.stateful_dataloader", "StatefulDataLoader")
OURS = LoaderClass("counterpoise", "DataLoader")
OURS_WITH_STATE = LoaderClass("tests.peer_suites.stateful", "StatefulDataLoader")
SWAPPED = (TORCH, TORCHDATA)  # imports of these are replaced


@dataclass(frozen=True, slots=True)
class Suite:
    """One file of tests, run once with `control` and once with `ours`."""

    name: str
    path: str  # below the folder of checkouts, or one of ours
    control: LoaderClass
    ours: LoaderClass

    def read(self, checkouts: Path) -> str:
        """Return the file's text; ValueError if it is not there."""
        file = checkouts / self.path
        if not file.is_file():
            raise ValueError(
                f"{file} is not there. SUITES must be a folder with a checkout of "
                "meta-pytorch/data named `data`, one of pytorch/pytorch (or a fork) named "
                "`pytorch` and one of huggingface/accelerate named `accelerate`"
            )
        return file.read_text()


_CHECKS = Path(__file__).with_name("accelerate_checks.py")
_STATEFUL = "data/test/stateful_dataloader"
SUITES = (
    Suite("torchdata-dataloader", f"{_STATEFUL}/test_dataloader.py", TORCH, OURS),
    Suite("pytorch-dataloader", "pytorch/test/test_dataloader.py", TORCH, OURS),
    Suite("state-dict", f"{_STATEFUL}/test_state_dict.py", TORCHDATA, OURS_WITH_STATE),
    Suite("sampler", f"{_STATEFUL}/test_sampler.py", TORCHDATA, OURS_WITH_STATE),
    Suite("hugging-face", f"{_STATEFUL}/test_hugging_face.py", TORCHDATA, OURS_WITH_STATE),
    Suite("accelerate", "accelerate/tests/test_data_loader.py", TORCH, OURS),
    Suite("accelerate-distributed", str(_CHECKS), TORCH, OURS),
)
