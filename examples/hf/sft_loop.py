"""Fine-tune a vision-language model on conversations with images, in a loop of your own.

Run: python examples/hf/sft_loop.py --model Qwen/Qwen2.5-VL-3B-Instruct --data '/data/shards/*.tar'
LLaVA and others that keep packed samples apart (docs/frameworks.md) are trained by the same script.
"""

import argparse

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

import counterpoise as cp


def main() -> None:
    """Train for some steps; each has samples_per_step samples, in as few packs as hold them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder of save_pretrained, or a name")
    parser.add_argument("--data", required=True, help="tar shards of conversations and images")
    parser.add_argument("--tokens", type=int, default=8192, help="the most in a microbatch")
    parser.add_argument("--samples-per-step", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    chat = cp.HFProcessor(AutoProcessor.from_pretrained(args.model), max_length=args.tokens, overlong="cut")
    model = AutoModelForImageTextToText.from_pretrained(args.model).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    balance = cp.Balance(
        budgets={"tokens": args.tokens}, samples_per_step=args.samples_per_step,
        accumulate="auto", layout="packed",
    )
    loader = cp.DataLoader(
        cp.TarDataset(args.data, chat), num_workers=args.workers, shuffle=True, balance=balance
    )
    for step in loader.steps():
        mean = 0.0
        for batch, info in zip(step.microbatches, step.infos):
            batch = {k: v.to(device) if torch.is_tensor(v) else v for k, v in batch.items()}
            logits = model(input_ids=batch["input_ids"], **cp.hf_kwargs(batch, model)).logits
            loss_sum = torch.nn.functional.cross_entropy(
                logits[0, :-1].float(), batch["labels"][0, 1:], reduction="sum"
            )
            loss = cp.scale_loss(loss_sum, info)
            loss.backward()
            mean += loss.item()
        optimizer.step(); optimizer.zero_grad()
        costs = [i.costs for i in step.infos]
        print(step.number, mean, costs, [i.images for i in step.infos], [i.padding for i in step.infos])
        if step.number + 1 == args.steps:
            break


if __name__ == "__main__":
    main()
