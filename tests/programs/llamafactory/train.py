"""LLaMA-Factory on balanced microbatches: torchrun --nproc-per-node 2 train.py train.yaml."""

from llamafactory.train import tuner
from llamafactory.train.sft import workflow

import counterpoise as cp

make_trainer = workflow.CustomSeq2SeqTrainer
workflow.CustomSeq2SeqTrainer = lambda **named: cp.adapters.attach_trainer(make_trainer(**named))
tuner.run_exp()
