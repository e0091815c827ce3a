"""For what Automodel builds: `counterpoise try trial.py:make_loader --ranks 2`."""

from nemo_automodel.components.config.loader import load_yaml_config
from nemo_automodel.recipes.llm import train_ft
from torch.utils.data import DataLoader


def make_loader():
    settings = load_yaml_config("sft.yaml")
    config = train_ft.TrainFinetuneRecipeForNextTokenPrediction(settings).cfg
    _, tokenizer = train_ft._build_tokenizer(config.model, config.dataset)
    loader = config.dataloader
    dataset = loader.dataset_config.build(tokenizer=tokenizer)
    return DataLoader(dataset, loader.batch_size, shuffle=True, collate_fn=loader.collate_fn)
