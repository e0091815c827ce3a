"""The papers' models by name, and the one reader of models: a name, a config.json, or several.

OmniBal (2025), Table 9: five encoders and five language models; a microbatch is 9 images of 1025
tokens and 4096 tokens (section 5.2). DistTrain (2025), section 8: ViT-H, a Llama-3 and Stable
Diffusion 2.1, sequences of 8192 tokens; patches of 16 x 16 and a U-Net's 6 TFLOP at 1024 pixels, .8
at 512, are assumed. Optimus (2025): towers that see sequences of 2048 tokens, two a microbatch.
These have matrices only: biases and norms are below .1 %.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..ir.typed_json import read_json_file
from .configs import read_config
from .model import ENCODER, GENERATOR, LANGUAGE, Model, SubModel, TransformerLayer, Vocabulary


def _encoder(name: str, width: int, inner: int, layers: int) -> SubModel:
    return SubModel(
        name, ENCODER, (TransformerLayer(width, inner),) * layers, unit="tiles",
        unit_tokens=1025, handed_tokens=256, unit_bytes=3 * 2 * 448**2,
    )  # fmt: skip


def _language(name: str, layer: TransformerLayer, layers: int, words: int) -> SubModel:
    causal = (replace(layer, causal=True, rms=layer.matrices == 3),) * layers
    return SubModel(name, LANGUAGE, causal, Vocabulary(layer.hidden, words))


def _tower(name: str, width: int, layers: int) -> SubModel:
    return SubModel(
        name, ENCODER, (TransformerLayer(width),) * layers, unit="tiles", unit_tokens=2048
    )


ENCODERS = {
    model.name: model
    for model in (
        _encoder("internvit-300m", 1024, 4096, 24),
        _encoder("internvit-6b", 3200, 12800, 45),
        _encoder("eva-clip-1b", 1408, 6144, 40),
        _encoder("eva-clip-4b", 1792, 15360, 64),
        _encoder("eva-clip-8b", 4096, 20480, 32),
        _encoder("eva-clip-18b", 5120, 25600, 48),
        _tower("vit-3b", 2304, 48),
        _tower("vit-5b", 3072, 48),
        _tower("vit-11b", 4096, 48),
        _tower("vit-22b", 6144, 48),
    )
}
LANGUAGES = {
    model.name: model
    for model in (
        _language("llama3-8b", TransformerLayer(4096, 14336, 3, 2048), 32, 128256),
        _language("internlm2.5-7b", TransformerLayer(4096, 14336, 3, 2048), 32, 92553),
        _language("internlm2-20b", TransformerLayer(6144, 16384, 3, 2048), 48, 92544),
        _language("yi-34b", TransformerLayer(7168, 20480, 3, 2048), 60, 64000),
        _language("llama3-70b", TransformerLayer(8192, 28672, 3, 2048), 80, 128256),
        _language("qwen1.5-110b", TransformerLayer(8192, 49152, 3, 2048), 80, 152064),
        _language("gpt-11b", TransformerLayer(3072), 80, 51200),
        _language("llama-70b", TransformerLayer(8192, 28672, 3, 2048), 80, 32000),
        _language("gpt-175b", TransformerLayer(12288), 96, 51200),
    )
}


def _mllm(name: str, layer: TransformerLayer, layers: int, pixels: int) -> Model:
    vit = SubModel(
        "encoder", ENCODER, (TransformerLayer(1280),) * 32, unit="tiles",
        unit_tokens=(pixels // 16) ** 2, unit_bytes=3 * 2 * pixels**2,
    )  # fmt: skip
    block, blocks = TransformerLayer(320), 16
    flops = 6 * 10**12 if pixels == 1024 else 8 * 10**11
    # Its widest tensors are 320 channels of latents; the blocks have 10^9 parameters in all.
    unet = SubModel(
        GENERATOR, GENERATOR, (block,) * blocks, front=10**9 - blocks * block.parameters,
        unit="tiles", unit_tokens=(pixels // 8) ** 2, unit_flops=flops // blocks,
    )  # fmt: skip
    backbone = replace(_language("backbone", layer, layers, 128256))
    return Model(name, (vit, backbone, unet), (("tokens", 8192), ("tiles", 4)))


MLLMS = {
    model.name: model
    for model in (
        _mllm("mllm-9b", TransformerLayer(4096, 11008, 3), 32, 512),
        _mllm("mllm-15b", TransformerLayer(5120, 13824, 3), 40, 512),
        _mllm("mllm-72b", TransformerLayer(8192, 28672, 3, 2048), 80, 1024),
    )
}


def read_model(text: str) -> Model:
    """Return a model by a paper's name, from a config.json, or from several with + between them.

    Of several the last is the language model, those before it its encoders; a projector of two
    matrices joins each. Raises ValueError that says what is known.

    >>> round(read_model("internvit-6b+internlm2-20b").parameters / 10**9, 1)
    25.5
    >>> [part.name for part in read_model("mllm-9b").parts]
    ['encoder', 'backbone', 'generator']
    """
    if text in MLLMS:
        return MLLMS[text]
    models = [_read_part(word, text) for word in text.split("+")]
    if len(models) == 1:
        return models[0]
    return _joined(text, *models)


def _joined(text: str, *models: Model) -> Model:
    """Return encoders and a language model, the last, as one."""
    *encoders, last = models
    kinds = [*(encoder.parts[0].kind for encoder in encoders), last.parts[-1].kind]
    if kinds != [ENCODER] * len(encoders) + [LANGUAGE]:
        raise ValueError(f"model {text!r}: write encoders first and the language model last")
    hidden, amounts = last.language.hidden, dict(last.usual)
    # Of two that are alike the second has a name with a stroke.
    parts: dict[str, SubModel] = {}
    for encoder in encoders:
        part = encoder.parts[0]
        name = part.name
        while name in parts:
            name += "'"
        parts[name] = replace(part, name=name, projector=part.projector or _projector(part, hidden))
        amounts |= {k: v for k, v in encoder.usual if k != "tokens"}
    if any(part.unit_tokens == 2048 for part in parts.values()):
        amounts |= {"tokens": 4096, "token_pairs": 2 * 2048**2}
    return Model(text, (*parts.values(), *last.parts), tuple(amounts.items()))


def _projector(part: SubModel, hidden: int) -> int:
    """Return a projector's parameters: from as many tokens as make one, and a square matrix.

    A tower of Optimus hands all of its tokens on, and has none.
    """
    if not part.handed_tokens:
        return 0
    return part.unit_tokens // part.handed_tokens * part.hidden * hidden + hidden * hidden


def _read_part(word: str, text: str) -> Model:
    if word in ENCODERS:
        count = 2 if ENCODERS[word].unit_tokens == 2048 else 9
        return Model(word, (ENCODERS[word],), (("tokens", 0), ("tiles", count)))
    if word in LANGUAGES:
        return Model(word, (LANGUAGES[word],))
    path = Path(word)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        names = ", ".join((*ENCODERS, *LANGUAGES, *MLLMS))
        raise ValueError(
            f"model {text!r}: {word!r} is no file; give a config.json, or a name, or "
            f"ENCODER+LANGUAGE of {names}"
        )
    config = read_json_file(path, dict[str, Any])
    if {"modules", "layers"} & set(config):
        raise ValueError(f"{path} holds measured costs: give it as --costs, not as a model")
    try:
        return read_config(config, path.parent.name or path.stem)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    # A field of another type fails wherever it is used first.
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{path} is no config.json, a field has a wrong value: {error}") from None
