"""The nine pairs of OmniBal (2025), Table 9: an encoder, a language model, the measured layout."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelPair:
    """An encoder, a language model, and the paper's layout: TP, PP, DP, layers of each stage."""

    encoder: str
    language: str
    tp: int
    pp: int
    dp: int
    published: tuple[int, ...]


# EVA-CLIP-4B's row sums up to ten layers fewer than the models have; 39 is read as 49.
PAIRS = (
    ModelPair("internvit-6b", "llama3-8b", 1, 4, 8, (16, 17, 20, 24)),
    ModelPair("internvit-6b", "internlm2-20b", 2, 4, 4, (22, 23, 24, 24)),
    ModelPair("internvit-6b", "yi-34b", 4, 4, 2, (28, 29, 24, 24)),
    ModelPair("internvit-6b", "llama3-70b", 4, 8, 2, (22, 23, 13, 14, 14, 14, 13, 12)),
    ModelPair("internvit-6b", "qwen1.5-110b", 8, 8, 1, (21, 22, 13, 13, 14, 14, 14, 14)),
    ModelPair("eva-clip-1b", "internlm2-20b", 2, 4, 4, (43, 16, 15, 14)),
    ModelPair("eva-clip-4b", "internlm2-20b", 2, 4, 4, (49, 22, 21, 20)),
    ModelPair("eva-clip-8b", "internlm2-20b", 2, 4, 4, (17, 18, 23, 22)),
    ModelPair("eva-clip-18b", "internlm2-20b", 4, 4, 4, (18, 19, 25, 34)),
)
