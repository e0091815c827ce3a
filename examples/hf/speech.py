"""Train a speech recogniser with CTC on sound files of very different lengths.

Run: python examples/hf/speech.py --model nvidia/parakeet-ctc-1.1b --data '/data/*.tar'
Shards have members wav and txt. The model is made new, by the configuration of --model: its
features are Whisper's log-mel frames. Sound needs pip install 'counterpoise[media]'.
"""

import argparse
from itertools import islice

import torch
from transformers import AutoConfig, AutoModelForCTC, AutoTokenizer, WhisperFeatureExtractor

import counterpoise as cp
from counterpoise.workers import Probe


class Speech:
    """Makes a sample of sound and text; says what it costs from the file's header."""

    deterministic = True

    def __init__(self, tokenizer: str, mels: int) -> None:
        """Load the tokenizer; mels is the number of frequencies."""
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self.features = WhisperFeatureExtractor(feature_size=mels)

    def __call__(self, raw: dict) -> dict:
        """Return input_features (frames, mels) and labels (tokens,)."""
        sound = cp.media.decode_audio(raw["wav"])
        mel = self.features(sound, sampling_rate=16_000, padding=False, truncation=False)
        ids = self.tokenizer(raw["txt"], add_special_tokens=False).input_ids
        return {"input_features": mel.input_features[0].T, "labels": ids}

    def probe(self, raw: dict) -> Probe:
        """Return the sample's cost; nothing is decoded."""
        sound = cp.media.probe_audio(raw["wav"])
        return Probe(raw["__key__"], {"mel_frames": sound.samples // 160})


def main() -> None:
    """Train for some steps; like lengths come together, so that little is padding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="the folder or name of a configuration")
    parser.add_argument("--data", required=True, help="tar shards of sounds and texts")
    parser.add_argument("--frames", type=int, default=24_000, help="the most in a microbatch")
    parser.add_argument("--samples-per-step", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100, help="at most, of one epoch")
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = AutoConfig.from_pretrained(args.model, ctc_loss_reduction="sum")
    model = AutoModelForCTC.from_config(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    fields = {"input_features": "pad 0", "attention_mask": "mask of input_features"}
    fields["labels"] = f"pad {config.pad_token_id}"
    data = cp.TarDataset(args.data, Speech(args.model, config.encoder_config.num_mel_bins))
    loader = cp.DataLoader(
        data, shuffle=True, num_workers=args.workers,
        balance=cp.Balance(
            budgets={"mel_frames": args.frames}, samples_per_step=args.samples_per_step,
            accumulate="auto", work="padded", layout=cp.Layout("speech", fields),
        ),
    )  # fmt: skip
    for step in islice(loader.steps(), args.steps):
        loss = 0.0
        for batch, info in zip(step.microbatches, step.infos, strict=True):
            given = {name: batch[name].to(device) for name in fields}
            share = cp.scale_loss(model(**given).loss, info, per="sample")
            share.backward()
            loss += share.item()
        optimizer.step()
        optimizer.zero_grad()
        frames = sum(info.costs["mel_frames"] for info in step.infos)
        padding = sum(info.padding["mel_frames"] for info in step.infos) / frames
        print(f"step {step.number}: loss {loss:.3f}, {frames} frames, {padding:.0%} padding")


if __name__ == "__main__":
    main()
