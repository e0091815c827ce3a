"""`attach_trainer`: a loader for transformers.Trainer and subclasses such as TRL's SFTTrainer.

Trainer asks for its loader by `get_train_dataloader`, fetches all microbatches of an optimizer step
before the first is trained on, and divides their losses by the label tokens of the step on all
ranks (`num_items_in_batch`): nothing is left to scale. The ledger is in the checkpoint, as the
state of a callback, where Trainer would resume by skipping.

Trainer counts steps and epochs from the length of its loader. Modes "window" and "epoch" have none
before the plan is made: then it takes max_steps for it, and begins at epoch 0 where it resumes. The
loader's own count is right, and goes on by itself.
"""

import functools
import inspect
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset

from ...balancer.planning.problem.model_times import known_time_ns
from ..models.kwargs import NEEDED, hf_kwargs, holds_nothing, is_packed, unwrapped
from ..models.proof import SEEN, check_packing
from ..step.accumulation import check_accumulation
from ..step.waiting import tell
from .accelerate import (
    ACCUMULATION,
    adopt_loop,
    is_packing,
    is_planned,
    prepare_accelerate,
    refuse_one_reader,
)
from .next_token import shifts_labels
from .trainer_arguments import check_is_ours, check_loading, check_said, check_strategy
from .trainer_loader import make_loader
from .trainer_loss import LossScale, explain_unnormalised, find_loss, measure_loss

logger = logging.getLogger(__name__)
LEDGER = "counterpoise ledger"
# What is put in place of a trainer's own, and taken back before another loader is attached.
PATCHED = ("log", "get_batch_samples", "compute_loss")
# Fields of a packed batch that are for the loop, and no model's unless its forward() names them.
OF_THE_LOOP = (
    *NEEDED, "cu_seq_lens_padded", "pad_sequences", "images_per_sample", "videos_per_sample",
    "tiles_per_image", "mrope_position_ids",
)  # fmt: skip


def attach_trainer(
    trainer: Any, loader: Any = None, eval_loader: Any = None, *, balance: Any = "auto",
    cost: Any = None,
) -> Any:  # fmt: skip
    """Make a transformers.Trainer train on a loader, evaluate on another, and return the trainer.

    Without a loader one is made whenever Trainer asks: with the columns, the collator, the batch
    size, the order and the workers that get_train_dataloader() would have had, overridden or not,
    and with `balance` and `cost` as in DataLoader. What it would refuse is refused at this call.
    The seed of the order is data_seed, or seed. Costs come from args.length_column_name, which is
    compared with the first samples; else balance="auto" finds them in the samples, or in the
    batches where the collator makes the tokens. Whether losses are divided by the label tokens of
    the step is measured: where they are not, counts are equal, and a warning says what that does.

    A balanced loader is used as it is, its ledger is saved in and loaded from checkpoints; a plain
    one, and `eval_loader`, are sharded as by accelerate and keep our workers. Packed batches get
    hf_kwargs, and the model is run on short samples to see that it keeps them apart. With
    balance="auto" the accumulation is Trainer's, counts are free where its losses are normalised by
    the tokens of the whole step, and tokens and pairs of attention are weighed by
    cp.balancer.time_ns(model.config) where that is a transformer's.

    eval_loader is for Trainer's own eval_dataset; of a dict of sets, give a dict of loaders. Any
    other set, as of evaluate(other) or predict(other), has Trainer's own loader.

    Raises ValueError for arguments of loading (batch size, workers, drop_last) that say other than
    the loader, for gradient_accumulation_steps that is not its accumulate, for a
    train_sampling_strategy other than the loader's order, for a get_train_dataloader of the
    trainer's class beside a loader, for packing, for a loss that is not normalised by the tokens of
    the whole step (measured at the first microbatch, by two more calls of compute_loss), for a
    model that mixes packed samples, for a balanced or packed eval_loader, and in modes "window" and
    "epoch" for TrainingArguments without max_steps. Without a loader also for samplers, streams,
    several GPUs in one process and parallel ranks that no plan follows.
    """
    if done := getattr(getattr(trainer, "state", None), "global_step", 0):
        tell(logger, f"{done} steps are trained: attach_trainer() belongs before trainer.train()")
    if loader is None:
        return _attach_theirs(trainer, eval_loader, balance, cost)
    if balance != "auto" or cost is not None:
        raise ValueError(
            "balance and cost are for the loader that attach_trainer makes, and it is given one: "
            "give them to that DataLoader, or leave the loader"
        )
    check_is_ours(loader, "attach_trainer")
    _check_labels(loader)
    check_strategy(trainer, loader)
    if eval_loader is not None:
        _attach_evaluation(trainer, eval_loader)
    feed = _use(trainer, loader)
    trainer.get_train_dataloader = lambda: feed
    return trainer


def _attach_theirs(trainer: Any, eval_loader: Any, balance: Any, cost: Any) -> Any:
    """Let a trainer make a loader of ours whenever it asks for its own."""
    check_strategy(trainer)
    get_theirs = trainer.get_train_dataloader
    callbacks, patches = trainer.callback_handler.callbacks, dict[str, tuple[Any, Any]]()

    def make_ours() -> Any:
        loader = make_loader(trainer, get_theirs, balance, cost)
        _check_labels(loader)
        return loader

    def get_train_dataloader(*_: Any, **__: Any) -> Any:  # ms-swift says how many to skip
        for name, (ours, theirs) in patches.items():
            if vars(trainer).get(name) is ours is not theirs:
                delattr(trainer, name) if theirs is None else setattr(trainer, name, theirs)
        before = {name: vars(trainer).get(name) for name in PATCHED}
        callbacks[:] = [callback for callback in callbacks if not hasattr(callback, "ledger_of")]
        loader = make_ours()
        is_auto = loader.is_balanced and loader._arguments.balance.grouping == "auto"
        loss = find_loss(trainer, loader) if is_auto else LossScale(explain_unnormalised(trainer))
        feed = _use(trainer, loader, loss)
        patches.update({name: (vars(trainer).get(name), before[name]) for name in PATCHED})
        return feed

    loader = make_ours()  # what is refused then, is refused now
    if eval_loader is not None:
        _attach_evaluation(trainer, eval_loader)
    trainer.args.ignore_data_skip |= loader.is_balanced  # the ledger says where to go on
    trainer.get_train_dataloader = get_train_dataloader
    return trainer


def _check_labels(loader: Any) -> None:
    if not shifts_labels(loader):
        raise ValueError(
            "Layout(..., shift_labels=False) says that labels are the next tokens already, and "
            "models of transformers shift them inside: give labels that stand at their own tokens "
            "(labels = input_ids) and leave shift_labels, or a loop of your own"
        )


def _use(trainer: Any, loader: Any, loss: LossScale | None = None) -> Any:
    """Return what Trainer is to iterate over for a loader, and prepare the trainer for it.

    loss: of a loader that was made here, how the trainer's losses are divided.
    """
    if not loader.is_balanced:
        if loss is None:
            check_loading(trainer, loader, loader.batch_size)
        _give_packed(trainer, loader)
        is_stream = loss is not None and isinstance(loader.dataset, IterableDataset)
        if is_stream:
            tell(logger, "train_dataset is a stream, and not balanced: a data set with len() is")
        is_split = is_stream and trainer.args.world_size > 1  # or it is refused
        feed = loader if is_split else prepare_accelerate(trainer.accelerator, loader)
        _log_stats(trainer, loader)
        return feed
    undivided = explain_unnormalised(trainer) if loss is None else loss.undivided
    adopt_loop(loader, trainer.args.gradient_accumulation_steps)
    adopt_model(loader, trainer.model, not undivided)
    if loss is not None:
        loader._late.adopt(means=loss.warning)
    if loader._late.counts != "equal":  # means of equal counts may be averaged
        if undivided:
            raise ValueError(undivided)
        if loss is None or not loss.is_measured:
            measure_loss(trainer)
    ours, theirs = loader._balanced.microbatches_per_step, trainer.args.gradient_accumulation_steps
    check_accumulation(ours, theirs, ACCUMULATION)
    refuse_one_reader(trainer.accelerator)
    plan = loader._balanced.plan
    is_stream = getattr(loader._balanced, "ledger_per_rank", False)
    size = None if is_stream else plan.samples_per_step / (plan.ranks * plan.accumulate)
    if loss is None:
        check_loading(trainer, loader, size)
    feed = with_known_epochs(loader, trainer.args.max_steps)
    _give_packed(trainer, loader)
    trainer.args.ignore_data_skip = True  # the ledger says where to go on
    trainer.add_callback(ledger_callback(loader))
    _log_stats(trainer, loader)
    return feed


def _log_stats(trainer: Any, loader: Any) -> None:
    """Log what a loader counts (keep_stats=) with what Trainer logs of training: its loss, say."""
    log = trainer.log

    def log_with_stats(logs: dict[str, Any], *more: Any, **named: Any) -> None:
        log({**logs, **loader.stats(flat=True)} if "loss" in logs else logs, *more, **named)

    if loader.keep_stats is not False:
        trainer.log = log_with_stats


def adopt_model(loader: Any, model: Any, normalises: bool) -> None:
    """Weigh costs as a model takes them, where its configuration says how it is made.

    normalises: losses are sums over labels, divided by the step's label tokens. Then counts are
    free, and a microbatch that weighs nothing has no labels. balance="auto" takes both where the
    user has not said otherwise.
    """
    config = getattr(model, "config", None)
    if (times := known_time_ns(config)) is not None:
        loader._late.adopt_times(times, type(config).__name__)
    if normalises:
        loader._late.leave_labels()
        loader._late.adopt(counts="free")


def _attach_evaluation(trainer: Any, loaders: Any) -> None:
    """Let Trainer evaluate its own eval_dataset by a loader, or each of its sets by its own."""
    sets = trainer.eval_dataset
    sets_by_name = sets if isinstance(sets, dict) else {None: sets}
    by_name = loaders if isinstance(loaders, dict) else {None: loaders}
    if sets_by_name.keys() != by_name.keys():
        raise ValueError(
            "eval_loader is a loader for Trainer's eval_dataset, or a dict of loaders with the "
            f"names of its sets: eval_dataset is {_described(sets)}, eval_loader "
            f"{_described(loaders)}"
        )
    prepared = {name: _prepared_evaluation(trainer, loader) for name, loader in by_name.items()}
    get_own = trainer.get_eval_dataloader

    def get_eval_dataloader(eval_dataset: Any = None) -> Any:
        # a name of a set, or Trainer's own set, which it also gives as an object
        name = eval_dataset if isinstance(eval_dataset, str) else None
        is_own = eval_dataset is None or eval_dataset is sets or name is not None
        return prepared[name] if is_own and name in prepared else get_own(eval_dataset)

    trainer.get_eval_dataloader = get_eval_dataloader


def _described(sets: Any) -> str:
    """Return the names of some sets or loaders; of one, its class."""
    names = ", ".join(map(str, sets)) if isinstance(sets, dict) else ""
    return f"a dict of {names}" if isinstance(sets, dict) else type(sets).__name__


def _prepared_evaluation(trainer: Any, loader: Any) -> Any:
    check_is_ours(loader, "eval_loader")
    if is_planned(loader):
        raise ValueError(
            "Trainer weighs all batches of an evaluation alike, and those of a balanced loader "
            "differ in size: give eval_loader=cp.DataLoader(data, batch_size=...), without balance"
        )
    if is_packing(loader):
        raise ValueError(
            "Trainer gives a model the batches of an evaluation as they are, and packed ones need "
            "hf_kwargs: give eval_loader=cp.DataLoader(..., collate_fn=cp.loader.collate_padded)"
        )
    if loader.batch_size is not None:
        check_said(trainer.args, {"per_device_eval_batch_size": loader.batch_size})
    return prepare_accelerate(trainer.accelerator, loader)


def _give_packed(trainer: Any, loader: Any) -> None:
    """Give packed batches to the model as it takes them; checked here, and at the first of them."""

    @functools.cache
    def check(images: bool, _: str) -> None:
        check_packing(trainer.model, images)

    def find_device() -> str:
        return str(next((weight.device for weight in trainer.model.parameters()), ""))

    if is_packing(loader):
        check(False, find_device())
    get = trainer.get_batch_samples

    def get_batch_samples(*args: Any, **named: Any) -> Any:
        batches, count = get(*args, **named)
        for batch in filter(is_packed, batches):
            seen = not SEEN.isdisjoint(batch)
            check(seen, find_device())  # again where the model has moved since
        return [for_model(batch, trainer.model) for batch in batches], count

    trainer.get_batch_samples = get_batch_samples


class OwnEpochs:
    """A balanced loader that has no length, and whose epochs Trainer does not choose."""

    def __init__(self, loader: Any) -> None:
        """Hand out the batches of `loader`; what else is asked for is the loader's."""
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        """Begin the loader's next epoch, or go on at its ledger."""
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        """Return the loader's attribute."""
        return getattr(self.loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Leave the loader's epoch: Trainer's own is another after a checkpoint."""


def with_known_epochs(loader: Any, max_steps: int) -> Any:
    """Return the loader for Trainer to iterate over; ValueError if neither knows when to end."""
    why = loader._balanced.no_steps_reason
    if not why:
        return loader
    if max_steps <= 0:
        raise ValueError(
            f"{why} beforehand, and Trainer needs it for num_train_epochs: give "
            "TrainingArguments(max_steps=...)"
        )
    return OwnEpochs(loader)


def ledger_callback(loader: Any) -> Any:
    """Return the callback that writes the ledger into checkpoints and goes on from it."""
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState

    is_exact = not loader._balanced.no_steps_reason
    per_rank, rank = getattr(loader._balanced, "ledger_per_rank", False), loader._balanced.ranks[0]

    def own_ledger(args: Any, state: Any) -> Path:
        """Return the file of this rank's ledger in a checkpoint, where each rank has its own."""
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        return folder / f"{LEDGER}-{rank}.json"

    class LedgerCallback(TrainerCallback, ExportableState):  # type: ignore[misc]
        """Trainer saves what state() returns in trainer_state.json under the class' name."""

        ledger_of = loader

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {LEDGER: loader.state_dict()}}

        def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if per_rank and rank:
                path = own_ledger(args, state)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(loader.state_dict()))

        def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            if state.global_step and per_rank and rank:
                loader.load_state_dict(json.loads(own_ledger(args, state).read_text()))
            elif state.global_step:
                loader.load_state_dict(saved_ledger(state, type(self).__name__))
            elif not is_exact:
                loader._balanced.set_epoch(0, pins=False)  # as Trainer where it counts epochs

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            # Trainer counts an epoch's batches from where it resumed
            # and fetches whole steps: the microbatch that was fetched last is of the right epoch
            epoch = state.global_step / loader.num_steps if is_exact else loader.step_info.epoch
            state.epoch = float(epoch)

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            # Trainer takes as many batches as an epoch has, and does not ask whether it is over
            if loader._stats is not None:
                loader._stats.end()

    return LedgerCallback()


def saved_ledger(state: Any, name: str) -> dict[str, Any]:
    """Return the ledger in a TrainerState, ValueError if there is none."""
    saved = (state.stateful_callbacks or {}).get(name)
    if not isinstance(saved, dict):
        raise ValueError(
            "the checkpoint was saved without attach_trainer(), so that it has no ledger to go on "
            "from: end this run without attach_trainer(); or load the model from the checkpoint's "
            "folder, and begin a new run, train() without resume_from_checkpoint"
        )
    return saved["attributes"][LEDGER]  # type: ignore[no-any-return]


def for_model(batch: Any, model: Any) -> Any:
    """Return a packed batch as the arguments of a Hugging Face model; any other as it is.

    Fields that hold nothing are left out: an encoder is not run where there are no images.
    """
    if not is_packed(batch):
        return batch
    taken = inspect.signature(unwrapped(model).forward).parameters
    fields = {
        name: value
        for name, value in batch.items()
        if not holds_nothing(value)
        and (
            name in taken
            or not (name in OF_THE_LOOP or name.removesuffix("_lengths") in batch.keys() - {name})
        )
    }
    return fields | hf_kwargs(batch, model)
