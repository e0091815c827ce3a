"""Fine-tune a vision-language model on conversations with images, with TRL's SFTTrainer.

Run: python examples/hf/sft_trl.py --model llava-hf/llava-1.5-7b-hf --data '/data/*.parquet'
TRL itself packs no images (trl 1.16); packed here are models that keep samples apart.
"""

import argparse

import torch
from datasets import load_dataset
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import SFTConfig, SFTTrainer

import counterpoise as cp


def main() -> None:
    """Train for some steps of batch_size x accumulate samples on each rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder of save_pretrained, or a name")
    parser.add_argument("--data", required=True, help="parquet files, columns messages and images")
    parser.add_argument("--output", default="sft-trl", help="the folder of checkpoints")
    parser.add_argument("--batch-size", type=int, default=8, help="samples in a microbatch")
    parser.add_argument("--accumulate", type=int, default=4, help="microbatches of a step")
    parser.add_argument("--max-length", type=int, default=4096, help="the most tokens of a sample")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    rows = load_dataset("parquet", data_files=args.data, split="train")
    processor = AutoProcessor.from_pretrained(args.model)
    trainer = SFTTrainer(
        model=AutoModelForImageTextToText.from_pretrained(args.model),
        args=SFTConfig(
            args.output,
            gradient_accumulation_steps=args.accumulate,
            max_steps=args.steps,
            logging_steps=1,
            learning_rate=1e-5,
            bf16=torch.cuda.is_available(),
            report_to=[],
        ),
        train_dataset=rows,
        processing_class=processor,
    )
    chat = cp.HFProcessor(processor, max_length=args.max_length, overlong="cut")
    loader = cp.DataLoader(
        chat.over(rows),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        balance=cp.Balance("auto", layout="packed"),
        on_error="skip",  # samples that cannot be cut to max_length, and broken ones
    )
    cp.adapters.attach_trainer(trainer, loader)
    trainer.train()
    print(f"{loader.left_out} samples were left out")


if __name__ == "__main__":
    main()
