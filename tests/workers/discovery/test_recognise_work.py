"""What a microbatch costs is recognised from collate_fn: padded, packed, constant, or neither."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from counterpoise.workers.collate.layouts import collate_packed, collate_padded
from counterpoise.workers.discovery import FoundWork, ResourceWork, find_costs, recognise_work
from tests.workers.discovery.kinds import samples_of

Collate = Callable[[list[Any]], Any]
_rng = np.random.default_rng(3)
TOKENS = [{"input_ids": [1] * int(n), "id": "a"} for n in _rng.integers(3, 300, 60)]
TILED = [
    {
        "input_ids": np.ones(int(n), np.int64), "labels": np.ones(int(n), np.int64),
        "pixel_values": np.zeros((int(m), 3, 4, 4), np.uint8), "tiles_per_image": np.array([m]),
    }
    for n, m in zip(_rng.integers(3, 300, 60), _rng.integers(0, 9, 60), strict=True)
]  # fmt: skip


def _work(samples: list[Any], collate_fn: Collate, batch_size: int = 4) -> FoundWork:
    return recognise_work(find_costs(samples), samples, collate_fn, batch_size)


def padding(multiple: int = 1, most: int = 10**6) -> Collate:
    """Return a collate function that pads rows to a multiple, and cuts them at `most`."""

    def collate(samples: list[Any]) -> dict[str, Any]:
        rows = [torch.tensor(sample["input_ids"])[:most] for sample in samples]
        ids = pad_sequence(rows, batch_first=True)
        ids = torch.nn.functional.pad(ids, (0, min(most, -(-ids.shape[1] // multiple) * multiple)
                                            - ids.shape[1]))  # fmt: skip
        return {"input_ids": ids, "attention_mask": ids > 0, "lengths": [len(r) for r in rows]}

    return collate


@pytest.mark.parametrize("batch_size", [2, 3, 4, 8])
def test_padding_packing_and_constant_size_are_recognised(batch_size: int) -> None:
    def packed(samples: list[Any]) -> Any:
        flat = torch.cat([torch.tensor(sample["input_ids"]) for sample in samples])
        return {"input_ids": flat[None], "cu_seq_lens": torch.zeros(len(samples) + 1)}

    def constant(samples: list[Any]) -> Any:
        return torch.zeros(len(samples), 512), [sample["id"] for sample in samples]

    assert _work(TOKENS, padding(), batch_size).padded == ("tokens",)
    assert _work(TOKENS, packed, batch_size).names("packed") == ("tokens",)
    assert _work(TOKENS, packed, batch_size).unrecognised == ()
    assert _work(TOKENS, constant, batch_size).names("constant") == ("tokens",)


@pytest.mark.parametrize("multiple", [1, 2, 8, 64])
@pytest.mark.parametrize("most", [None, 128])
def test_the_multiple_and_the_truncation_are_found_and_measured(
    multiple: int, most: int | None
) -> None:
    collate = padding(multiple, most or 10**6)
    found = find_costs(TOKENS)
    work = recognise_work(found, TOKENS, collate)
    (one,) = work.resources
    assert (one.work, one.multiple, one.limit) == ("padded", multiple, most)
    measured = found.as_batched(work)
    for k in range(0, 60, 4):
        some = TOKENS[k : k + 4]
        largest = max(measured.measure(sample)["tokens"] for sample in some)
        assert 4 * largest == collate(some)["input_ids"].numel()


def test_sums_that_are_rounded_up_to_a_multiple_are_packed() -> None:
    def collate(samples: list[Any]) -> Any:
        whole = sum(len(sample["input_ids"]) for sample in samples)
        return torch.zeros(-(-whole // 16) * 16)

    assert _work(TOKENS, collate).names("packed") == ("tokens",)
    assert _work(TOKENS, collate).unrecognised == ()


def test_our_own_layouts_are_recognised_with_tiles_beside_tokens() -> None:
    padded, packed = _work(TILED, collate_padded), _work(TILED, collate_packed)
    assert (padded.padded, padded.names("packed")) == (("tokens",), ("tiles",))
    assert (packed.padded, packed.names("packed")) == ((), ("tokens", "tiles"))
    assert padded.describe() == "tokens padded, tiles add up"


def test_text_is_padded_where_collate_fn_tokenizes_it() -> None:
    samples = samples_of("two texts in a dict")

    def collate(some: list[Any]) -> Any:
        # A token for every three characters or so, of both texts.
        rows = [len(each["prompt"]) // 3 + len(each["completion"]) // 3 + 2 for each in some]
        return {"input_ids": torch.zeros(len(some), max(rows), dtype=torch.long)}

    assert _work(samples, collate).padded == ("prompt", "completion")


def test_texts_that_the_loop_tokenizes_itself_are_not_recognised() -> None:
    # Most loops pad them, but nobody can see it here.
    samples = samples_of("a text")
    assert _work(samples, list).unrecognised == ("text",)
    costs = {"tokens": [len(sample) // 4 for sample in samples]}
    assert recognise_work(costs, samples, list).unrecognised == ("tokens",)


def _table(samples: list[Any]) -> dict[str, list[int]]:
    return {"tokens": [len(sample["input_ids"]) for sample in samples]}


def test_what_a_table_says_is_compared_with_the_batches() -> None:
    texts = [{"text": "long" * n + "wide " * (300 - n)} for n in _rng.integers(3, 300, 60)]
    costs = {"tokens": [each["text"].count("long") for each in texts]}

    def collate(some: list[Any]) -> Any:
        rows = [torch.ones(each["text"].count("long") + 2) for each in some]
        return {"input_ids": pad_sequence(rows, batch_first=True)}

    assert recognise_work(costs, texts, collate).padded == ("tokens",)
    joined = recognise_work(costs, texts, lambda some: collate(some)["input_ids"].flatten()[:1])
    assert joined.names("constant") == ("tokens",)


@pytest.mark.parametrize("extra", [0, 1, 2, 21])
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("most", [None, 136])
def test_a_table_is_made_the_rows_of_batches(extra: int, multiple: int, most: int | None) -> None:
    def rows(some: list[Any]) -> list[int]:
        return [min(len(each["input_ids"]) + extra, most or 10**6) for each in some]

    def collate(some: list[Any]) -> Any:
        return torch.zeros(len(some), -(-max(rows(some)) // multiple) * multiple)

    (one,) = recognise_work(_table(TOKENS), TOKENS, collate).resources
    assert one == ResourceWork("tokens", "padded", multiple, extra, most)


def test_texts_are_cut_where_their_tokens_are() -> None:
    # Of two texts with as many words the one may have twice the characters of the other.
    rng = np.random.default_rng(10)
    counts = [*rng.integers(10, 41, 48), *[300] * 12]
    samples = [{"text": " ".join(int(n) * "w" for n in rng.integers(1, 9, k))} for k in counts]

    def collate(some: list[Any]) -> Any:
        rows = [torch.ones(min(len(each["text"].split()), 36)) for each in some]
        return pad_sequence(rows, batch_first=True)

    (one,) = recognise_work(find_costs(samples), samples, collate).resources
    assert one.work == "padded"
    assert 180 < (one.limit or 10**6) < 210


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("is_found", [False, True])
def test_joined_patches_do_not_decide_about_ids_that_are_padded(
    as_tuple: bool, is_found: bool
) -> None:
    patches = {id(each): int(n) for each, n in zip(TOKENS, _rng.integers(4, 200, 60), strict=True)}
    samples = [{**each, "path": f"{patches[id(each)]}.png"} for each in TOKENS]

    def collate(some: list[Any]) -> Any:
        ids = pad_sequence([torch.tensor(each["input_ids"]) for each in some], batch_first=True)
        pixels = torch.zeros(sum(int(each["path"][:-4]) for each in some), 1176)
        return (pixels, ids) if as_tuple else {"pixel_values": pixels, "input_ids": ids}

    costs = find_costs(samples) if is_found else _table(samples)
    assert recognise_work(costs, samples, collate).padded == ("tokens",)


def test_a_cost_that_nothing_in_the_batches_follows_is_not_recognised() -> None:
    patches = _rng.permutation(60)
    samples = [{"path": f"{n}.png"} for n in patches]
    costs = {"tokens": _rng.permutation(60).tolist()}

    def collate(some: list[Any]) -> Any:
        return torch.zeros(sum(int(each["path"][:-4]) for each in some), 8)

    assert recognise_work(costs, samples, collate).unrecognised == ("tokens",)


def test_images_are_padded_to_the_largest_and_boxes_add_up() -> None:
    sizes = zip(_rng.integers(8, 64, 40), _rng.integers(1, 9, 40), strict=True)
    samples = [{"image": torch.zeros(3, int(n), 16), "boxes": [[0.0] * 4] * m} for n, m in sizes]

    def collate(some: list[Any]) -> Any:
        images = pad_sequence([each["image"].transpose(0, 1) for each in some], batch_first=True)
        return images, torch.tensor([box for each in some for box in each["boxes"]])

    work = _work(samples, collate)
    assert (work.padded, work.names("packed")) == (("image",), ("boxes",))


def test_pictures_that_are_padded_in_height_and_in_width_are_not_count_times_largest() -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": torch.zeros(3, *rng.integers(8, 64, 2).tolist())} for _ in range(64)]

    def pad_both(batch: list[Any]) -> Any:
        high, wide = (max(each["image"].shape[axis] for each in batch) for axis in (1, 2))
        return {"image": torch.zeros(len(batch), 3, high, wide)}

    work = recognise_work(find_costs(samples), samples, pad_both, 4)
    assert work.padded == ()
    assert len(work.unrecognised) == 1


def test_one_huge_sample_is_told_apart_from_a_sum() -> None:
    samples = samples_of("one sample larger than all others together")
    assert _work(samples, padding()).padded == ("tokens",)
    assert _work(samples, lambda some: {"x": [each["input_ids"] for each in some]}).names("packed")


@pytest.mark.parametrize("count", [2, 3])
def test_few_samples_are_enough(count: int) -> None:
    samples = [{"input_ids": [1] * (4 * k + 1)} for k in range(count)]
    assert _work(samples, padding()).padded == ("tokens",)


def test_batches_of_one_sample_are_not_padded() -> None:
    assert _work(TOKENS, padding(), batch_size=1).names("packed") == ("tokens",)
    assert _work(TOKENS, lambda _: torch.zeros(512), batch_size=1).names("constant") == ("tokens",)


def test_what_is_neither_is_said_not_to_be_recognised() -> None:
    def squared(samples: list[Any]) -> Any:
        return torch.zeros(sum(len(each["input_ids"]) for each in samples) ** 2)

    work = _work([{"input_ids": [1] * k} for k in (1, 5, 9, 20)], squared)
    assert (work.unrecognised, work.names("packed"), work.padded) == (("tokens",), (), ())
    assert work.describe() == "tokens not recognised in the batches, and left alone"


@pytest.mark.parametrize("draw", [random.random, np.random.random, lambda: float(torch.rand(()))])
def test_a_collate_fn_that_draws_changes_neither_generators_nor_the_choice(draw: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        longest = max(len(each["input_ids"]) for each in samples)
        return torch.zeros(len(samples), 1 + int(longest * draw()))

    def following() -> tuple[float, ...]:
        return random.random(), np.random.random(), float(torch.rand(()))

    def seed() -> None:
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)

    seed()
    expected = following()
    choices = []
    for _ in range(2):
        seed()
        choices.append(_work(TOKENS, collate))
        assert following() == expected
    assert choices[0] == choices[1]
    assert choices[0].unrecognised == ("tokens",)


def test_samples_stay_as_they_are_though_collate_fn_changes_them() -> None:
    def collate(samples: list[Any]) -> Any:
        rows = [torch.tensor(sample.pop("input_ids")) for sample in samples]
        return pad_sequence(rows, batch_first=True)

    samples = copy.deepcopy(TOKENS)
    assert _work(samples, collate).padded == ("tokens",)
    assert samples == TOKENS


def test_lists_that_some_samples_have_empty_are_no_field_that_is_missing() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 40).tolist()
    samples = [{"input_ids": [1] * n, "images": [np.zeros((n, 4))] * (n % 2)} for n in lengths]
    assert _work(samples, list).names("packed") == ("tokens", "images")


def test_a_collate_fn_that_fails_is_one_error_with_ordinals_and_what_to_write() -> None:
    with pytest.raises(ValueError, match="collate_fn raised RuntimeError: stack exp") as caught:
        _work(samples_of("a tuple of a tensor and a class"), torch.utils.data.default_collate)
    assert "of the epoch's order" in str(caught.value)
    assert "give a collate_fn that pads, or say" in str(caught.value)
    assert 'work="padded"' in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_nothing_is_collated_where_nothing_varies() -> None:
    samples = samples_of("samples of constant size")
    work = _work(samples, lambda _: pytest.fail("collated"))
    assert work.resources == ()


def test_a_collate_fn_that_returns_nothing_is_told_so() -> None:
    with pytest.raises(ValueError, match="collate_fn returned None: let it return the batch"):
        _work(TOKENS, lambda _: None)
