"""The embedding's passes: what an nn.Embedding computes, and a tied weight's summed gradient."""

import pytest
import torch
from torch import Tensor, nn

from counterpoise.sched import Pass
from counterpoise.sched.runtime.parts import MicrobatchData, TensorSpec
from counterpoise.sched.runtime.vocabulary.shard import VocabParallel, VocabularyShard
from counterpoise.sched.runtime.vocabulary.step import VocabularyPart
from tests.sched.runtime.vocabulary.one_process import begun, error, labelled
from tests.sched.runtime.vocabulary.shards import joined

SIZE, HIDDEN, RANKS = 13, 8, 4


def layers(padding_idx: int | None = None) -> tuple[nn.Linear, nn.Embedding]:
    torch.manual_seed(0)
    return nn.Linear(HIDDEN, SIZE, bias=False), nn.Embedding(SIZE, HIDDEN, padding_idx=padding_idx)


def batches() -> list[MicrobatchData]:
    draw = torch.Generator().manual_seed(1)
    words = [torch.randint(0, SIZE, shape, generator=draw) for shape in ((2, 5), (0,), (7,))]
    return [labelled(word.roll(1), 0.1, words=word) for word in words]


def steps(
    head: nn.Linear, embedding: nn.Embedding
) -> tuple[list[VocabularyShard], list[VocabularyPart]]:
    parallel = VocabParallel(head, embedding)
    shards = [parallel.shard(rank, RANKS) for rank in range(RANKS)]
    return shards, [begun(shard, parallel, batches()) for shard in shards]


def look_up(every: list[VocabularyPart], m: int) -> Tensor:
    parts = [step.run("IF", m) for step in every]
    return torch.stack([part for part in parts if part is not None]).sum(0)


@pytest.mark.parametrize("padding_idx", [None, 0, 5])
def test_the_sum_over_shards_is_the_embedding_and_its_gradient(padding_idx: int | None) -> None:
    head, embedding = layers(padding_idx=padding_idx)
    shards, every = steps(head, embedding)
    for m, batch in enumerate(batches()):
        found = look_up(every, m)
        wanted = embedding(batch.fields["input_ids"])
        assert torch.equal(found, wanted)
        gradient = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(m))
        wanted.backward(gradient)
        for step in every:
            assert step.run("IB", m, gradient) is None
    assert error(joined(shards, "weight", "embedding"), embedding.weight.grad) <= 1e-6


def test_a_frozen_embedding_gets_no_gradient() -> None:
    head, embedding = layers()
    embedding.requires_grad_(False)
    shards, every = steps(head, embedding)
    gradient = torch.ones_like(look_up(every, 0))
    for step in every:
        step.run("IB", 0, gradient)
        step.run("IF", 1)
        # Where nothing is trained there may be no gradient to send.
        step.run("IB", 1)
    assert joined(shards, "weight", "embedding") is None


def test_hooks_on_the_embedding_fire_once_for_each_microbatch() -> None:
    shards, every = steps(*layers())
    rows = shards[0].embedding
    assert rows is not None
    fired: list[Tensor] = []
    rows.weight.register_post_accumulate_grad_hook(fired.append)
    gradients = [torch.ones_like(look_up(every, m)) for m in range(3)]
    for m, gradient in enumerate(gradients):
        every[0].run("IB", m, gradient)
    assert len(fired) == 3


def test_a_word_outside_the_vocabulary_is_an_error() -> None:
    head, embedding = layers()
    parallel = VocabParallel(head, embedding)
    batch = labelled(torch.tensor([0]), 1.0, words=torch.tensor([SIZE]))
    step = begun(parallel.shard(0, 2), parallel, [batch])
    with pytest.raises(ValueError, match="word 13 is not in the vocabulary of 13 words; give 0 to"):
        step.run("IF", 0)


def test_words_of_others_are_zeros_on_a_shard_of_a_single_row() -> None:
    embedding = nn.Embedding.from_pretrained(torch.ones(9, 2))
    shard = VocabParallel(nn.Linear(2, 9), embedding).shard(2, 4)  # 4 rows a rank: it has word 8
    found, edge = shard.look_up(torch.tensor([8, 5, 0]))
    assert found.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert edge is None


def test_what_the_first_stage_is_given_has_its_precision_and_shape() -> None:
    parallel, words = VocabParallel(*layers()), torch.zeros(2, 3, dtype=torch.long)
    spec = TensorSpec((2, 3, HIDDEN), torch.bfloat16)
    batch = MicrobatchData({"labels": words, "input_ids": words}, 1.0, spec)
    made = begun(parallel.shard(0, 2), parallel, [batch]).run_pass(Pass(0, "IF", 0), {})["IF"]
    assert (made.shape, made.dtype) == (spec.shape, spec.dtype)
