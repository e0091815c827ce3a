"""`HFProcessor`: a processor of Hugging Face as transform of any source, and as collate_fn."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..workers.collate.layouts import collate_padded
from ..workers.hf_processor.source import ProcessedRecords
from ..workers.hf_processor.transform import RecordProcessor

# What a batch says of itself, and no model takes.
BESIDE = ("images_per_sample", "videos_per_sample", "tiles_per_image")


class HFProcessor(RecordProcessor):
    """Makes samples of chat records with a processor or tokenizer of transformers.

        hf = cp.HFProcessor(AutoProcessor.from_pretrained(path), max_length=4096)
        cp.TarDataset("shards/*.tar", hf)              # transform of a source, with its costs
        hf.over(rows)                                  # of any map-style data set: a source
        DataLoader(rows, batch_size=8, collate_fn=hf)  # a list of records: a padded batch

    Called with one record it returns the sample: token ids, labels, and everything the processor
    returns, as arrays without a batch axis; labels are -100 but for what the assistant says. Called
    with a list of records it returns their batch in layout "padded". processors.md has the forms of
    records, and of the images, videos and sounds in them.

    processor         an AutoProcessor, or a tokenizer with a chat template; or the folder or name
                      it is loaded from, when it is first used (the form for workers elsewhere)
    chat_template     in place of the processor's own
    max_length        the most tokens of a sample
    overlong          what one with more is: "refuse", a SampleError; "cut", cut at its end, but
                      not where that is within an image, video or sound
    media_root        the folder that the paths of records are in; without it files are refused
    frames            which frames of a video are taken: a cp.media.FrameRule, or its arguments as
                      a mapping; without it videos are refused
    processor_kwargs  given to each call of the processor, as {"images_kwargs": {...}}
    template_kwargs   variables of the template
    max_pixels        the most pixels of an image
    """

    def __call__(self, records: Any) -> Any:
        """Return the sample of a record, or the batch of a list of them."""
        if isinstance(records, Mapping) or not isinstance(records, Sequence):
            return super().__call__(records)
        return self.collate(records)

    def over(self, dataset: Any) -> ProcessedRecords:
        """Return a map-style data set of records as a source of samples, with their costs."""
        return ProcessedRecords(dataset, self)

    def collate(self, records: Sequence[Any]) -> dict[str, Any]:
        """Return records as a batch: rows filled up to the longest, with an attention mask."""
        return self.collate_samples([RecordProcessor.__call__(self, each) for each in records])

    def collate_samples(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return samples, as `self(record)` gives them, as a batch for `model(**batch)`.

        Without what a layout says beside: of how many things the batch is.
        """
        pad_id = self.tokenizer.pad_token_id
        batch = collate_padded(samples, pad_id=0 if pad_id is None else pad_id)
        left_out = {*BESIDE, *(name for name in batch if name.endswith("_lengths"))}
        if not len(batch.get("pixel_values", ())):
            left_out |= self.image_fields
        for name in self.nested_fields & batch.keys():
            batch[name] = batch[name][None]  # all images as if they were of one row
        return {name: value for name, value in batch.items() if name not in left_out}
