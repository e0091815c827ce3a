"""Times of tokens, pairs and tiles follow from a configuration as from the layers' shapes."""

from types import SimpleNamespace
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.balancer.planning.problem.model_times import known_time_ns
from counterpoise.sched.shapes import TransformerLayer, Vocabulary

LLAMA = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 160, "hidden_act": "silu",
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 96, "hidden_act": "gelu",
    "num_attention_heads": 4, "image_size": [56, 56], "patch_size": 14,
}  # fmt: skip


def test_operations_are_those_of_the_layers_and_a_step_is_three_forwards() -> None:
    layer = TransformerLayer(64, 160, matrices=3, key_values=2 * 16)
    found = cp.balancer.time_ns(LLAMA)
    forward = 3 * layer.forward_flops(tokens=1, pairs=0) + Vocabulary(64, 1000).forward_flops(1)
    assert found == {
        "tokens": 3 * forward,
        "attention_pairs": 3 * 3 * layer.forward_flops(tokens=0, pairs=1),
    }


def test_a_tile_is_a_sequence_of_patches_of_the_encoder() -> None:
    found = cp.balancer.time_ns({"text_config": LLAMA, "vision_config": VISION})
    assert found.pop("tiles") == 3 * 2 * TransformerLayer(32, 96).forward_flops(
        tokens=16, pairs=256
    )
    assert found == cp.balancer.time_ns(LLAMA)
    any_size = {**VISION, "image_size": None}
    assert "tiles" not in cp.balancer.time_ns({"text_config": LLAMA, "vision_config": any_size})


def test_patches_of_any_number_cost_as_those_of_a_usual_image() -> None:
    qwen = {**VISION, "image_size": None, "spatial_merge_size": 2}
    found = cp.balancer.time_ns({"text_config": LLAMA, "vision_config": qwen})
    usual = 3 * 2 * TransformerLayer(32, 96).forward_flops(tokens=1024, pairs=1024**2)
    assert found == {**cp.balancer.time_ns(LLAMA), "patches": usual // 1024}
    # of two layers one sees windows of 4 x 4 patches
    windows = {**qwen, "window_size": 56, "fullatt_block_indexes": [1]}
    less = cp.balancer.time_ns({"text_config": LLAMA, "vision_config": windows})["patches"]
    layer = TransformerLayer(32, 96)
    assert found["patches"] - less == 3 * layer.forward_flops(tokens=0, pairs=1024 - 16)
    # Qwen2-VL calls another width so
    named = {**qwen, "hidden_size": 999, "embed_dim": 32}
    assert cp.balancer.time_ns({"text_config": LLAMA, "vision_config": named}) == found


@pytest.mark.parametrize(("change", "of_tokens"), [
    ({"head_dim": 16}, 64 * (2 * 64 + 2 * 16)), ({"hidden_act": "gelu"}, -64 * 160),
    ({"hidden_act": "gelu", "model_type": "gemma2"}, 0),
    ({"num_experts_per_tok": 2, "moe_intermediate_size": 100}, 3 * 64 * (200 - 160)),
    ({"num_key_value_heads": None}, 64 * 2 * (64 - 16)),
    ({"intermediate_size": None}, 3 * 64 * (256 - 160)),
])  # fmt: skip
def test_shapes_that_differ_count_as_they_are(change: dict[str, Any], of_tokens: int) -> None:
    found = cp.balancer.time_ns({**LLAMA, **change})
    wide = 1 + ("head_dim" in change)
    assert found["attention_pairs"] == wide * cp.balancer.time_ns(LLAMA)["attention_pairs"]
    assert found["tokens"] - cp.balancer.time_ns(LLAMA)["tokens"] == 6 * 3 * of_tokens


def test_flash_attention_leaves_out_half_of_the_pairs() -> None:
    config = SimpleNamespace(**LLAMA, _attn_implementation="flash_attention_2")
    assert (
        cp.balancer.time_ns(config)["attention_pairs"] * 2
        == cp.balancer.time_ns(LLAMA)["attention_pairs"]
    )


@pytest.mark.parametrize("config", [{}, None, {"hidden_size": 8}, {"hidden_size": "8"}, object()])
def test_a_configuration_without_shapes_says_what_to_give(config: Any) -> None:
    with pytest.raises(ValueError, match=r"needed are hidden_size.*Balance\(work="):
        cp.balancer.time_ns(config)


def test_a_balance_takes_them_for_work_of_both_kinds() -> None:
    times = cp.balancer.time_ns(LLAMA)
    assert cp.Balance(work=times).time_ns == times
    assert cp.Balance(work=cp.Work("padded", times)).resolved_work == "padded"


def test_sizes_that_differ_from_layer_to_layer_are_not_known() -> None:
    assert known_time_ns({**LLAMA, "intermediate_size": [160, 160, 320]}) is None
