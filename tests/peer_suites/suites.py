"""The suites: where their files are in a checkout, and which classes take turns in them."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class LoaderClass:
    """A class by the import that gives it."""

    module: str
    name: str


TORCH = LoaderClass("torch.utils.data", "DataLoader")
TORCHDATA = LoaderClass("torchdata.stateful_dataloader", "StatefulDataLoader")
OURS = LoaderClass("counterpoise", "DataLoader")
OURS_WITH_STATE = LoaderClass("tests.peer_suites.stateful", "StatefulDataLoader")
OURS_BESIDE_PLUGIN = LoaderClass("stateful", "StatefulDataLoader")  # outside the package `tests`
# Functions of attached.py: torch's class stays, and each Trainer gets a loader of ours.
PLAIN = LoaderClass("attached", "attach_plain")
BALANCED = LoaderClass("attached", "attach_balanced")
ATTACHING = (PLAIN, BALANCED)
SWAPPED = (TORCH, TORCHDATA)  # imports of these are replaced


@dataclass(frozen=True, slots=True)
class Suite:
    """One file of tests, run once with `control` and once with `ours`."""

    name: str
    path: str  # below the folder of checkouts
    control: LoaderClass
    ours: LoaderClass


@dataclass(frozen=True, slots=True)
class CheckoutSuite:
    """Tests run where they lie, once with the control and once with ours in its place."""

    name: str
    path: str  # the checkout, below the folder of checkouts
    tests: tuple[str, ...]  # files, folders and tests of files (FILE::TEST) below `path`
    imports: tuple[str, ...] = (".",)  # folders below `path` that the tests import from
    hidden: tuple[str, ...] = ()  # what it does without where it is not installed
    joined: str = ""  # an installed package of which the checkout has more
    selected: str = ""  # an expression of pytest's -k
    drivers: tuple[str, ...] = ()  # files beside this one, which test scripts of the checkout
    has_hub: bool = False  # whether hub.py writes what its tests fetch
    control: LoaderClass = TORCH
    ours: LoaderClass = OURS


_STATEFUL = "data/test/stateful_dataloader"
# Files that make or read a DataLoader and need no GPU and no network. Left out of lhotse is
# test_multinode_resume (torchdata's loader, 20 minutes), of litData test_parallel (20 minutes).
_LHOTSE = (
    "iterable_dataset", "controllable_weights", "checkpoint_restore", "e2e_checkpoint_restore",
    "audio_chunk_dataset", "webdataset",
)  # fmt: skip
_LIGHTNING = (
    "pytorch/trainer/connectors/test_data_connector", "pytorch/trainer/test_dataloaders",
    "pytorch/utilities/test_data", "pytorch/utilities/test_combined_loader",
    "pytorch/loops/test_fetchers", "fabric/utilities/test_data", "fabric/test_wrappers",
    "fabric/test_fabric", "pytorch/core/test_datamodules", "pytorch/loops/test_loops",
    "pytorch/loops/test_double_iter_in_iterable_dataset", "pytorch/loops/test_evaluation_loop",
    "pytorch/loops/test_prediction_loop", "pytorch/trainer/flags/test_limit_batches",
    "pytorch/trainer/flags/test_overfit_batches", "pytorch/utilities/test_auto_restart",
)  # fmt: skip
_MONAI = (
    "data/test_arraydataset", "data/test_cachedataset", "data/test_cachedataset_persistent_workers",
    "data/test_csv_iterable_dataset", "data/test_dataloader", "data/test_dataset_summary",
    "data/test_grid_dataset", "data/test_iterable_dataset", "data/test_numpy_reader",
    "data/test_patch_dataset", "data/test_shuffle_buffer", "data/test_smartcachedataset",
    "data/test_thread_buffer", "data/test_threadcontainer", "data/meta_tensor/test_meta_tensor",
    "data/utils/test_decollate", "handlers/test_handler_validation",
    "integration/test_pad_collation",
)  # fmt: skip
_LITDATA = ("raw/test_dataset", "streaming/test_combined", "streaming/test_dataloader")
_SPEECHBRAIN = (
    "batching", "core", "data_pipeline", "dataloader", "dataset", "epoch_loop", "samplers",
)  # fmt: skip
_COMPOSER = (
    "test_events", "test_state", "trainer/test_dataspec", "trainer/test_predict",
    "trainer/test_trainer_eval",
)  # fmt: skip
# test_dataloader reads from the network, and waits for ever where there is none.
_WEBDATASET = (
    "webloader", "webloader2", "webloader_repeat", "webloader_unbatched",
    "check_empty_throws_ValueError",
)  # fmt: skip
# Of the release 0.3.0, whose loader is a subclass of torchdata's; later ones read with grain alone.
_TORCHTITAN = (
    "chat_dataset.py", "dataloader.py", "dataset_interleaving.py", "mm_dataset_checkpointing.py",
    "text_dataset_packing.py",
    # and not test_c4_resumption, which reads 4,100 batches: minutes with either loader
    *(
        f"dataset_checkpointing.py::TestDatasetCheckpointing::test_{name}"
        for name in (
            "map_style_shuffle_on_reloop", "interleaved_resumption",
            "interleaved_resumption_mid_epoch",
        )
    ),
)  # fmt: skip
_TRANSFORMERS = CheckoutSuite(
    "transformers", "transformers",
    tuple(f"tests/trainer/test_trainer_{name}.py" for name in ("data", "resume", "evaluation")),
    drivers=("drive_transformers.py",), has_hub=True,
)  # fmt: skip
# Left out are losses and collators alone, which have no loader, and models with pictures.
_TRL = CheckoutSuite(
    "trl", "trl", ("tests/test_sft_trainer.py",), has_hub=True,
    selected="TestSFTTrainer and not TestSFTTrainerSlow and not vlm",
)  # fmt: skip
# Left out are 256 tests of prompts, which differ in what the model is fed alone.
_SENTENCES = CheckoutSuite(
    "sentence-transformers", "sentence-transformers", ("tests/samplers", "tests/test_trainer.py"),
    selected="not test_trainer_prompts", has_hub=True,
)  # fmt: skip
SUITES: tuple[Suite | CheckoutSuite, ...] = (
    Suite("torchdata-dataloader", f"{_STATEFUL}/test_dataloader.py", TORCH, OURS),
    Suite("pytorch-dataloader", "pytorch/test/test_dataloader.py", TORCH, OURS),
    Suite("state-dict", f"{_STATEFUL}/test_state_dict.py", TORCHDATA, OURS_WITH_STATE),
    Suite("sampler", f"{_STATEFUL}/test_sampler.py", TORCHDATA, OURS_WITH_STATE),
    Suite("hugging-face", f"{_STATEFUL}/test_hugging_face.py", TORCHDATA, OURS_WITH_STATE),
    Suite("accelerate", "accelerate/tests/test_data_loader.py", TORCH, OURS),
    CheckoutSuite(
        "lhotse", "lhotse",
        (*(f"test/dataset/test_{name}.py" for name in _LHOTSE), "test/dataset/sampling"),
    ),
    CheckoutSuite(
        "lightning", "pytorch-lightning", tuple(f"tests/tests_{file}.py" for file in _LIGHTNING),
        ("src", "tests"),
    ),
    CheckoutSuite("monai", "MONAI", tuple(f"tests/{file}.py" for file in _MONAI)),
    CheckoutSuite(
        "litdata", "litData", tuple(f"tests/{file}.py" for file in _LITDATA), ("src", ".")
    ),
    CheckoutSuite(
        "speechbrain", "speechbrain",
        tuple(f"tests/unittests/test_{name}.py" for name in _SPEECHBRAIN),
    ),
    # its conftest loads tokenizers from the network where there is transformers
    CheckoutSuite(
        "composer", "composer", tuple(f"tests/{file}.py" for file in _COMPOSER),
        hidden=("transformers",),
    ),
    CheckoutSuite(
        "webdataset", "webdataset", tuple(f"tests/test_loaders.py::test_{it}" for it in _WEBDATASET)
    ),
    CheckoutSuite(
        "torchtitan", "torchtitan",
        tuple(f"tests/unit_tests/test_{test}" for test in _TORCHTITAN),
        control=TORCHDATA, ours=OURS_BESIDE_PLUGIN,
    ),
    # Ray's wheel has no tests
    CheckoutSuite(
        "ray", "ray/python/ray/train",
        ("v2/tests/test_torch_trainer.py", "v2/tests/test_lightning_integration.py"),
        ("../../../../pytorch-lightning/src",), joined="ray.train",
    ),
    *(
        replace(suite, name=f"{suite.name}{suffix}", ours=ours)
        for suite in (_TRANSFORMERS, _TRL, _SENTENCES)
        for suffix, ours in (("", OURS), ("-attached", PLAIN), ("-balanced", BALANCED))
    ),
)  # fmt: skip
