"""Pieces of logits, the precision of products, and what small choices are by default."""

import inspect

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from counterpoise.sched.runtime.vocabulary.loss import LossOptions
from counterpoise.sched.runtime.vocabulary.output_passes import (
    PIECE,
    column_pieces,
    multiply,
    token_pieces,
)


@pytest.mark.parametrize(
    ("tokens", "columns", "piece", "sizes"),
    [
        (5, 10, 20, [2, 2, 1]), (5, 1, 4, [4, 1]), (2, 10, 9, [1, 1]), (0, 10, 9, []),
        (3, 0, 2, [2, 1]),
    ],
)  # fmt: skip
def test_tokens_come_in_pieces_that_hold_so_many_logits(
    tokens: int, columns: int, piece: int, sizes: list[int]
) -> None:
    found = list(token_pieces(tokens, columns, piece))
    assert [each.stop - each.start for each in found] == sizes
    assert [n for each in found for n in range(each.start, each.stop)] == list(range(tokens))


def test_a_piece_takes_64_mib_in_single_precision() -> None:
    assert PIECE * torch.float32.itemsize == 64 << 20
    assert next(token_pieces(10**6, 2**16)) == slice(0, 2**8)


def test_columns_come_in_pieces_of_whole_multiples_of_128() -> None:
    sizes = [each.stop - each.start for each in column_pieces(4, 1000, piece=4 * 500)]
    assert sizes == [384, 384, 232]
    assert [each.stop for each in column_pieces(4, 200, piece=1)] == [128, 200]


def test_products_of_low_precision_are_summed_in_single_precision() -> None:
    a = torch.full((1, 1024), 1.0, dtype=torch.bfloat16)
    b = torch.full((1024, 1), 1.0078125, dtype=torch.bfloat16)
    found = multiply(a, b)
    assert found.dtype == torch.float32
    assert found.item() == 1032.0
    assert multiply(a.double(), b.double()).dtype == torch.float64


def test_labels_are_ignored_as_torch_ignores_them() -> None:
    default = inspect.signature(F.cross_entropy).parameters["ignore_index"].default
    assert LossOptions().ignore_index == default


def test_ranks_exchange_three_numbers_a_token_and_a_fourth_for_smoothing() -> None:
    assert LossOptions(z_loss=0.1, softcap=3.0).statistics == 3
    assert LossOptions(label_smoothing=0.1).statistics == 4
