"""Fine-tune a vision-language model on conversations with images, with transformers' Trainer.

Run: python examples/hf/sft_trainer.py --model Qwen/Qwen2.5-VL-3B-Instruct --data '/data/*.tar'
"""

import argparse

from transformers import AutoModelForImageTextToText, AutoProcessor, Trainer, TrainingArguments

import counterpoise as cp


def main() -> None:
    """Train for some steps of batch_size x accumulate samples on each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder of save_pretrained, or a name")
    parser.add_argument("--data", required=True, help="tar shards of conversations and images")
    parser.add_argument("--output", default="sft-trainer", help="the folder of checkpoints")
    parser.add_argument("--batch-size", type=int, default=8, help="samples in a microbatch")
    parser.add_argument("--accumulate", type=int, default=4, help="microbatches of a step")
    parser.add_argument("--max-length", type=int, default=4096, help="the most tokens of a sample")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    model = AutoModelForImageTextToText.from_pretrained(args.model)
    chat = cp.HFProcessor(
        AutoProcessor.from_pretrained(args.model), max_length=args.max_length, overlong="cut"
    )
    loader = cp.DataLoader(
        cp.TarDataset(args.data, chat),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        balance=cp.Balance("auto", layout="packed"),
        on_error="skip",  # samples that cannot be cut to max_length, and broken ones
    )
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            args.output,
            gradient_accumulation_steps=args.accumulate,
            max_steps=args.steps,
            logging_steps=1,
            learning_rate=1e-5,
            report_to=[],
        ),
    )
    cp.adapters.attach_trainer(trainer, loader)
    trainer.train()
    print(f"{loader.left_out} samples were left out")


if __name__ == "__main__":
    main()
