"""Fine-tunes a small Llama on chats with TRL.

Run: torchrun --standalone --nproc-per-node 2 trl_texts.py
"""

import random

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import SFTConfig, SFTTrainer

import counterpoise as cp

WORDS = [f"word{number}" for number in range(60)]


def new_tokenizer():
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def read_texts(size=128, seed=0):
    """Texts of 4 to 200 words."""
    draw = random.Random(seed)
    texts = []
    for _ in range(size):
        length = min(200, 4 + int(draw.expovariate(1 / 30)))
        texts.append({"text": " ".join(draw.choice(WORDS) for _ in range(length))})
    return Dataset.from_list(texts)


def main():
    set_seed(42)
    tokenizer = new_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    arguments = SFTConfig(
        "out",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=1e-3,
        max_length=256,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        max_grad_norm=0,
        report_to=[],
        seed=42,
    )
    trainer = SFTTrainer(
        model=model,
        args=arguments,
        train_dataset=read_texts(),
        eval_dataset=read_texts(16, 1),
        processing_class=tokenizer,
    )
    loader = cp.DataLoader(
        trainer.train_dataset,
        batch_size=arguments.per_device_train_batch_size,
        shuffle=True,
        collate_fn=trainer.data_collator,
        num_workers=arguments.dataloader_num_workers,
        balance=cp.Balance("auto", seed=arguments.seed),
    )
    cp.adapters.attach_trainer(trainer, loader)
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
