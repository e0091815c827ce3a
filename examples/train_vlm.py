"""Train a vision-language model on a pipeline, with its image encoder in the pipeline's bubbles.

Run: torchrun --standalone --nproc-per-node 2 examples/train_vlm.py --pp 2 --steps 3

With `--nproc-per-node 4` they are two pipelines of two ranks, or with `--pp 4` one of four. The
loader balances samples by tiles and tokens and orders microbatches for the pipeline; output layer
and input embedding are divided over all ranks. `--data` takes WebDataset shards of conversations
with images. With `--checkpoints FOLDER` a job that was killed goes on where it was saved, on
whatever layout: the losses stay the same. Where the encoder runs is planned again when steps take
other times than simulated (`--replan off`: never). `--json` ends with one object of figures, and
`--page FILE` has the last step's timeline, measured over simulated. It comes with the package:
`torchrun ... -m counterpoise.examples.train_vlm`.
"""

import argparse
import json
import os
import statistics
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from counterpoise.loader import Balance, DataLoader, Step
from counterpoise.sched import (
    CostFunction,
    CostProfile,
    Costs,
    PlanChange,
    Program,
    Replan,
    Timeline,
    dump_profile,
    encoder_times,
    hidden_share,
    load_profile,
    measured_costs,
    profile_costs,
    schedule,
    simulate,
    with_encoders,
)
from counterpoise.sched.render.svg import render_svg
from counterpoise.sched.runtime import (
    EncoderSpec,
    Pipeline,
    StageOptions,
    StepLoss,
    VocabParallel,
    load_checkpoint,
    newest_checkpoint,
    resumed_schedule,
    save_checkpoint,
)
from counterpoise.tools.demo.data import cache_folder, ensure_demo_data
from counterpoise.tools.demo.model import TransformerBlock
from counterpoise.workers import TarDataset, VisionLanguage

WIDTH, HEADS, LAYERS, VOCABULARY, IMAGE = 64, 4, 8, 262, 259
TILE, PATCH, TOKENS_PER_TILE = 32, 8, 4
PATCHES = (TILE // PATCH) ** 2
ENCODER_LAYERS = 4
CONTEXT = 8192  # tokens of a microbatch
MICROBATCHES, SAMPLES = 8, 16  # of each pipeline, of all pipelines


class Patches(nn.Module):
    """Cuts uint8 tiles (tiles, 3, TILE, TILE) into patches (tiles, PATCHES, WIDTH)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.places = nn.Parameter(torch.randn(PATCHES, WIDTH) * 0.02)

    def forward(self, tiles: Tensor) -> Tensor:
        """Embed all tiles of a microbatch at once."""
        x: Tensor = self.embed(tiles.float() / 127.5 - 1).flatten(2).transpose(1, 2)
        return x + self.places


class VisionBlock(TransformerBlock):
    """A block of the encoder, which takes its input alone."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, causal=False)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Attend within each tile."""
        return super().forward(x, None)


class Projector(nn.Module):
    """Joins patches to features (tokens, WIDTH), TOKENS_PER_TILE for each tile."""

    def __init__(self) -> None:
        super().__init__()
        merged = WIDTH * PATCHES // TOKENS_PER_TILE
        self.norm, self.linear = nn.LayerNorm(merged), nn.Linear(merged, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Project neighbouring patches together."""
        joined = x.reshape(len(x) * TOKENS_PER_TILE, -1)
        found: Tensor = self.linear(self.norm(joined))
        return found


class Model(nn.Module):
    """The whole model, of which each rank keeps what it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.ModuleList([Patches(), VisionBlock(), VisionBlock(), Projector()])
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        blocks = (TransformerBlock(WIDTH, HEADS, causal=True) for _ in range(LAYERS))
        self.layers = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)


class Stage(nn.Module):
    """A stage: some layers, called as in the whole model, so that any layout can load them."""

    def __init__(self, model: Model, stage: int, stages: int) -> None:
        super().__init__()
        each = LAYERS // stages
        own = range(stage * each, (stage + 1) * each)
        self.layers = nn.ModuleDict({str(number): model.layers[number] for number in own})
        self.norm = model.norm if stage == stages - 1 else None

    def forward(self, x: Tensor, cu_seq_lens: Tensor, position_ids: Tensor) -> Tensor:
        """Map hidden states (tokens, WIDTH) to the same shape; samples do not see each other."""
        half = WIDTH // HEADS // 2
        angles = position_ids.reshape(1, -1, 1, 1) * 1e4 ** (-torch.arange(half) / half)
        x, bounds = x[None], tuple(cu_seq_lens.tolist())
        for layer in self.layers.values():
            x = layer(x, bounds, angles)
        return x[0] if self.norm is None else self.norm(x[0])


def merge(embeddings: Tensor, features: Mapping[str, Tensor], fields: Mapping[str, Any]) -> Tensor:
    """Put the features on the places of the image tokens."""
    places = fields["input_ids"].flatten() == IMAGE
    return embeddings.masked_scatter(places[:, None], features["vision"].to(embeddings.dtype))


def base_program(ranks: int, microbatches: int) -> Program:
    """Return the language model's program: 1F1B with vocabulary passes."""
    return schedule("1f1b-alg2", ranks=ranks, microbatches=microbatches, inputs=True)


def rough_profile(ranks: int) -> CostProfile:
    """Return what passes may cost, in ns for a thousand tokens or tiles; a job measures its own."""
    layer, vocabulary, patches = 10_000_000, 2_000_000, 100_000_000
    tokens = {"F": layer * LAYERS // ranks, "S": vocabulary, "T": vocabulary}
    tokens |= {"B": 2 * tokens["F"], "IF": vocabulary // 10, "IB": vocabulary // 10}
    tiles = {"A": patches // 2, "B": patches, "C": patches, "D": patches // 2}
    passes = {kind: (CostFunction(per_thousand={"tokens": ns}),) for kind, ns in tokens.items()}
    for letter, ns in tiles.items():
        passes[f"EF_{letter}"] = (CostFunction(per_thousand={"tiles": ns}),)
        passes[f"EB_{letter}"] = (CostFunction(per_thousand={"tiles": 2 * ns}),)
    return CostProfile(tuple(range(ranks)), passes)


def plan(ranks: int, microbatches: int, costs: Costs) -> Program:
    """Return the program with the encoder's layers in its gaps."""
    base = base_program(ranks, microbatches)
    return with_encoders(base, costs, encoder_times(costs, [ENCODER_LAYERS]))


@cache
def first_program(ranks: int, microbatches: int) -> Program:
    """Return the program before anything is measured."""
    usual = [{"tokens": 600, "tiles": 15}] * microbatches
    return plan(ranks, microbatches, profile_costs(rough_profile(ranks), usual))


def make_pipeline(mesh: DeviceMesh, checkpoint: Path | None, replan: str) -> Pipeline:
    """Return this rank's part of the model, in the places of the schedule."""
    torch.manual_seed(0)
    model = Model()
    rank, ranks = mesh["pp"].get_local_rank(), mesh["pp"].size()
    encoder = EncoderSpec(
        "vision",
        list(model.vision),
        tokens={"tiles": TOKENS_PER_TILE},
        width=WIDTH,
        layer_names=[f"vision.{number}" for number in range(len(model.vision))],
    )
    return Pipeline(
        mesh,
        schedule=resumed_schedule(checkpoint, first_program),
        replan=Replan(plan, rough_profile(ranks), threshold=0.2) if replan == "on" else "off",
        stages={rank: Stage(model, rank, ranks)},
        vocabulary=VocabParallel(model.lm_head, model.embedding),
        encoders=[encoder],
        hidden=WIDTH,
        run=StageOptions(extras=("cu_seq_lens", "position_ids"), merge=merge),
        loss=StepLoss(shift_labels=True),
        deadline_s=120,
    )


def make_loader(mesh: DeviceMesh, pipe: Pipeline, given: argparse.Namespace) -> DataLoader:
    """Return a loader that balances tiles and tokens, and orders microbatches for the pipeline."""
    transform = VisionLanguage(tile_size=TILE, max_tiles=6, tokens_per_tile=TOKENS_PER_TILE)
    pattern = given.data or demo_data()
    loader = DataLoader(
        TarDataset(pattern, transform),
        num_workers=1,
        shuffle=True,
        ranks=mesh,
        fields=pipe.needs,
        balance=Balance(
            budgets={"tiles": 128, "tokens": CONTEXT},
            oversize="refuse",  # longer conversations are left out
            samples_per_step=SAMPLES,
            accumulate=MICROBATCHES,
            layout="packed",
            pipeline=cost_profile(given.pp),
        ),
    )
    loader.follow_costs(pipe)
    return loader


def first_on_host() -> bool:
    """Return whether this process writes what all processes of its host read."""
    return int(os.environ.get("LOCAL_RANK", "0")) == 0


def demo_data() -> str:
    """Return the pattern of the demo's shards, which one process of each host makes."""
    if first_on_host():
        ensure_demo_data(samples=128, shards=2)
    distributed.barrier()
    return ensure_demo_data(samples=128, shards=2)


def cost_profile(stages: int) -> str:
    """Return the path of what passes cost: `counterpoise profile` measures it in a real job."""
    path = cache_folder() / f"vlm-profile-{stages}.json"
    if first_on_host():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_profile(rough_profile(stages)))
    distributed.barrier()
    return str(path)


def endless(loader: DataLoader) -> Iterator[Step]:
    """Yield the steps of one epoch after another."""
    while True:
        yield from loader.steps()


def train(mesh: DeviceMesh, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Train, and yield the figures of each step."""
    newest = newest_checkpoint(given.checkpoints) if given.checkpoints else None
    pipe = make_pipeline(mesh, newest, given.replan)
    loader = make_loader(mesh, pipe, given)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=2e-3)
    done = 0
    if newest is not None:
        saved = load_checkpoint(newest, pipe, optimizer)
        loader.load_state_dict(saved["loader"])
        done = saved["steps"]
    steps = endless(loader)
    try:
        for number in range(done, given.steps):
            before = time.perf_counter()
            step = next(steps)
            waited = time.perf_counter() - before
            ran = pipe.programs().get(MICROBATCHES)  # the next step may have another one
            profile = known_costs(pipe, given.pp)
            result = pipe.step(step)
            pipe.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            changes = [change_figures(change) for change in pipe.plan_changes()]
            measured = pipe.timeline()
            figures = {"step": number, "loss": float(result.loss), "waited_s": round(waited, 3)}
            figures |= batch_figures(mesh, step)
            ran = ran or pipe.programs()[MICROBATCHES]
            simulated = simulate(ran, measured_costs(measured))
            planned = simulate(ran, profile_costs(profile, [info.costs for info in step.infos]))
            shown = pipeline_figures(measured, simulated, planned)
            yield figures | shown | {"plan_changes": changes}
            if given.checkpoints and (number + 1) % given.save_every == 0:
                state = {"steps": number + 1, "loader": loader.state_dict()}
                save_checkpoint(given.checkpoints / f"step-{number + 1}", pipe, optimizer, state)
        if given.page and done < given.steps and distributed.get_rank() == 0:
            write_picture(given.page, measured, simulated)
    finally:
        loader.close()
        pipe.close()


def batch_figures(mesh: DeviceMesh, step: Step) -> dict[str, Any]:
    """Return samples and tokens of the global batch, and a hash of which samples they are."""
    keys = [key for info in step.infos for key in info.keys]
    tokens = sum(info.costs["tokens"] for info in step.infos)
    found = torch.tensor([len(keys), tokens, sum(zlib.crc32(key.encode()) for key in keys)])
    distributed.all_reduce(found, group=mesh["dp"].get_group())
    return {"samples": int(found[0]), "tokens": int(found[1]), "batch": f"{int(found[2]):x}"}


def known_costs(pipe: Pipeline, ranks: int) -> CostProfile:
    """Return what passes cost as far as is known: what the plan goes by."""
    measured = pipe.measured_costs()[0]
    return load_profile(measured) if measured else rough_profile(ranks)


def pipeline_figures(
    measured: Timeline, simulated: Timeline, planned: Timeline
) -> dict[str, float]:
    """Return step and bubble as measured and simulated, the encoder's hidden share as planned."""
    found = {
        "step_measured": measured.makespan_ns / 1e9,
        "step_simulated": simulated.makespan_ns / 1e9,
        "bubble_measured": measured.bubble_ratio,
        "bubble_simulated": simulated.bubble_ratio,
        "hidden_measured": hidden_share(measured),
        "hidden_planned": hidden_share(planned),
    }
    return {name: round(value, 4) for name, value in found.items()}


def change_figures(change: PlanChange) -> dict[str, Any]:
    """Return before which step a plan was taken, and the share of the step that it saves."""
    gains = {"gain_simulated": change.gain, "gain_measured": change.measured_gain}
    return {"step": change.step} | {name: round(value, 4) for name, value in gains.items()}


def write_picture(path: Path, measured: Timeline, simulated: Timeline) -> None:
    """Write the picture of a step, measured over simulated."""
    named = [
        replace(measured, name="measured"),
        replace(simulated, name="simulated with the times that its passes took"),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    title = "A training step: measured and simulated"
    path.write_text(render_svg(named, title=title), "utf-8")


HEADER = """\
                                   measured (simulated with the passes' times)   (as planned)
 step      loss  tokens      batch   waited              step         bubble  encoder hidden"""


def describe(figures: Mapping[str, Any]) -> str:
    """Return the line of a step, below HEADER."""
    changes = figures["plan_changes"]
    new = changes and changes[-1]["step"] == figures["step"] + 1
    return (
        "{step:5} {loss:9.6f} {tokens:7} {batch:>10} {waited_s:6.2f} s"
        "  {step_measured:7.3f} ({step_simulated:6.3f}) s"
        "  {bubble_measured:4.0%} ({bubble_simulated:4.0%})"
        "    {hidden_measured:4.0%} ({hidden_planned:4.0%})"
    ).format(**figures) + ("  planned again" if new else "")


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pp", type=int, default=4, help="ranks of a pipeline")
    parser.add_argument("--data", metavar="PATTERN", help="shards; without, the demo's own")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--checkpoints", type=Path, metavar="FOLDER")
    parser.add_argument("--save-every", type=int, default=5, metavar="STEPS")
    parser.add_argument("--replan", choices=("on", "off"), default="on", help="by measured times")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="the last step's timeline, as SVG"
    )
    parser.add_argument("--json", action="store_true", help="one object of figures at the end")
    return parser.parse_args(words)


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first and last loss, and the medians of what was measured and simulated."""
    names = ("hidden_planned", "hidden_measured", "step_simulated", "step_measured")
    medians = {name: round(statistics.median(one[name] for one in found), 4) for name in names}
    figures = {"loss_first": found[0]["loss"], "loss_last": found[-1]["loss"]}
    return figures | medians | {"plan_changes": found[-1]["plan_changes"]}


def main() -> None:
    """Train on all processes that torchrun has started."""
    given = read_arguments()
    distributed.init_process_group("gloo")
    pipelines, rest = divmod(distributed.get_world_size(), given.pp)
    if rest or LAYERS % given.pp:
        sizes = [n for n in (1, 2, 4, 8) if distributed.get_world_size() % n == 0]
        raise SystemExit(f"--pp {given.pp} does not divide the processes; give one of {sizes}")
    mesh = init_device_mesh("cpu", (pipelines, given.pp), mesh_dim_names=("dp", "pp"))
    found = []
    first = distributed.get_rank() == 0
    for figures in train(mesh, given):
        if first:
            print(describe(figures) if found else f"{HEADER}\n{describe(figures)}", flush=True)
        found.append(figures)
    if first and given.json and found:
        print(json.dumps(summary(found)))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
