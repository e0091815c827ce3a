"""verl's SFT as it is: what `python -m verl.trainer.sft_trainer` runs."""

from verl.trainer import sft_trainer

sft_trainer.main()
