"""`HFProcessor`: a processor of Hugging Face as transform of any source, and as collate_fn.

A record is read as a chat (records.py), rendered to text with the spans that are learned
(rendering.py), and given to the family's own processor: with images, videos and sounds, or, for a
probe, with what has their sizes alone (sizes.py, clips.py). So what a probe says of
tokens and labels is what loading gives, whatever the family does to the text.
"""

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from PIL import Image

from ...balancer.near_names import check_name
from ..images.decode import MAX_PIXELS
from ..media import FrameRule
from ..sources.fingerprint import digest, library_versions
from ..sources.interface import Probe, SampleError
from ..sources.labels import IGNORED, count_label_tokens
from ..sources.registry import find_import_name
from .clips import (
    Clips,
    count_frames,
    count_mel_frames,
    is_whisper,
    quiet,
    read_clips,
    sound_maker,
    takes_torch_only,
)
from .fields import PER_TOKEN, Fields, clip_fields, nests_images, sample_fields
from .files import open_pixels, read_size
from .records import Chat, find_key, read_record
from .rendering import find_template
from .sizes import NoRuleError, SizedImages, find_rule, find_unit, patches_of_sizes
from .source import ProcessedRecords
from .texts import Tokens, render_text, tokenize

Overlong = Literal["refuse", "cut"]
# What a batch says of itself, and no model takes.
BESIDE = ("images_per_sample", "videos_per_sample", "tiles_per_image")
PIXELS = ("pixel_values", "image_pixel_values")  # the latter is Phi-4-multimodal's
# Of images too thin for a processor; classes below are of devices, or of videos (probe).
REFUSALS = (RuntimeError, ZeroDivisionError, IndexError)
# Arguments that are what they are as JSON.
SETTINGS = (
    "chat_template", "max_length", "overlong", "processor_kwargs", "template_kwargs", "max_pixels",
)  # fmt: skip
logger = logging.getLogger(__name__)
# An image that has a size and no pixels to speak of.
_DOT = Image.new("RGB", (1, 1))


class HFProcessor:
    """Makes samples of chat records with a processor or tokenizer of transformers.

        hf = cp.HFProcessor(AutoProcessor.from_pretrained(path), max_length=4096)
        cp.TarDataset("shards/*.tar", hf)              # transform of a source, with its costs
        hf.over(rows)                                  # of any map-style data set: a source
        DataLoader(rows, batch_size=8, collate_fn=hf)  # a list of records: a padded batch

    Called with one record it returns the sample: token ids, labels, and everything the processor
    returns, as arrays without a batch axis; labels are -100 but for what the assistant says. Called
    with a list of records it returns their batch in layout "padded". processors.md has the forms of
    records, and of the images, videos and sounds in them.

    Args:
        processor: An AutoProcessor, or a tokenizer with a chat template; or the folder or name it
            is loaded from, when it is first used (the form for workers elsewhere).
        chat_template: A template in place of the processor's; default its own.
        max_length: Most tokens of a sample; default no limit.
        overlong: Treatment of a sample with more: "refuse" (default), a SampleError; "cut", cut at
            its end, but not within an image, video or sound.
        media_root: Folder that the paths of records are in; default none: files are refused.
        processor_kwargs: Arguments of each call of the processor, as {"images_kwargs": {...}}.
        template_kwargs: Variables of the template.
        max_pixels: Most pixels of an image; default 178,956,970, Pillow's.
        frames: Frames of a video that are taken: a cp.media.FrameRule, or its arguments as a
            mapping; default none: videos are refused.
    """

    deterministic = True

    def __init__(
        self,
        processor: Any,
        *,
        chat_template: str | None = None,
        max_length: int | None = None,
        overlong: Overlong = "refuse",
        media_root: str | Path | None = None,
        processor_kwargs: Mapping[str, Any] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        max_pixels: int = MAX_PIXELS,
        frames: FrameRule | Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(processor, str | Path) and not callable(processor):
            raise ValueError(
                f"processor is a {type(processor).__name__}: give an AutoProcessor or a tokenizer, "
                "or the folder or name that one is loaded from"
            )
        check_name("overlong", overlong, get_args(Overlong))
        if max_length is not None and max_length < 1:
            raise ValueError(f"max_length must be at least 1, got {max_length}")
        self.max_length, self.overlong, self.max_pixels = max_length, overlong, max_pixels
        self.frames = FrameRule(**frames) if isinstance(frames, Mapping) else frames
        self.chat_template = chat_template
        self.media_root = None if media_root is None else Path(media_root)
        self.processor_kwargs = dict(processor_kwargs or {})
        self.template_kwargs = dict(template_kwargs or {})
        # One that is named by a path is loaded at its first use, and again in each process.
        self._path = str(processor) if isinstance(processor, str | Path) else None
        self._processor = None if self._path is not None else processor
        self._blank: Fields | None = None
        self._fingerprint = ""
        self._has_warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes; a processor that was loaded from a path is loaded again."""
        state = {**self.__dict__, "_blank": None}
        return state if self._path is None else {**state, "_processor": None}

    @property
    def processor(self) -> Any:
        """The processor or tokenizer; one that was named is loaded now."""
        if self._processor is None:
            from transformers import AutoProcessor

            # Never with trust_remote_code: what others send by name must not run code.
            self._processor = AutoProcessor.from_pretrained(self._path)
        return self._processor

    @property
    def tokenizer(self) -> Any:
        """The processor's tokenizer, or the tokenizer that was given."""
        return getattr(self.processor, "tokenizer", self.processor)

    @property
    def probes_by_size(self) -> bool:
        """Return whether costs come from sizes and texts; else samples are loaded for them."""
        return not (self._unmeasured("images") or self._unmeasured("sounds"))

    def _unmeasured(self, kind: str) -> str:
        """Return what makes things of a kind, where nothing says what without loading them."""
        if kind == "images" and self._has_images and find_rule(self.processor) is None:
            return type(self.processor.image_processor).__name__
        maker = sound_maker(self.processor) if kind == "sounds" else None
        return "" if maker is None or is_whisper(self.processor) else type(maker).__name__

    def __call__(self, records: Any) -> Any:
        """Return the sample of a record, or the batch of a list of them; SampleError for neither.

        Arrays of a sample have no batch axis.
        """
        if isinstance(records, Mapping) or not isinstance(records, Sequence):
            return self._sample(records)
        return self.collate_samples([self._sample(record) for record in records])

    def _sample(self, record: Any) -> Any:
        chat = read_record(record)
        try:
            root, most = self.media_root, self.max_pixels
            pictures = [open_pixels(image, record, root, most) for image in chat.images]
            clips = read_clips(chat, record, self.media_root, self.frames, self.processor)
            if pictures and self._has_images:
                return self._cut(self._seen(chat, pictures, clips))
            fields = self._cut(self._tokens(self.processor, chat, pictures, clips))
            fields = {**fields, **clip_fields(fields)}
            return {**fields, **self._blank_fields()} if self._has_images else fields
        except ValueError as error:
            raise _name_sample(chat.key, error) from error

    def over(self, dataset: Any) -> ProcessedRecords:
        """Return a map-style data set of records as a source of samples, with their costs."""
        return ProcessedRecords(dataset, self)

    def collate_samples(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return samples, as `self(record)` gives them, as a batch for `model(**batch)`.

        Without what a layout says beside: of how many things the batch is.
        """
        from ..collate.layouts import collate_padded  # here: probes need no torch

        pad_id = self.tokenizer.pad_token_id
        batch = collate_padded(samples, pad_id=0 if pad_id is None else pad_id)
        left_out = {*BESIDE, *(name for name in batch if name.endswith("_lengths"))}
        if self._has_images and not len(batch.get("pixel_values", ())):
            left_out |= self._blank_fields().keys()
        if self._has_images and nests_images(self.processor):
            for name in batch.keys() & {"pixel_values", "pixel_attention_mask"}:
                batch[name] = batch[name][None]  # all images as if they were of one row
        return {name: value for name, value in batch.items() if name not in left_out}

    def probe(self, record: Any) -> Probe:
        """Return what a record costs: its tokens and label_tokens, and what its media become.

        tiles or patches of images, frames of videos, mel_frames of sounds. Files are read no
        further than their sizes; where the family has no rule for that (see `probes_by_size`) the
        record is loaded.
        """
        if why := self._unmeasured("images"):
            return self._loaded_cost(record, why)
        chat = read_record(record)
        if chat.sounds and (why := self._unmeasured("sounds")):
            return self._loaded_cost(record, why)
        try:
            root, most = self.media_root, self.max_pixels
            sizes = [read_size(image, record, root, most) for image in chat.images]
            clips = read_clips(chat, record, self.media_root, self.frames, self.processor, True)
            rule, stand_in, sized = find_rule(self.processor), self.processor, None
            if clips.sounds:
                stand_in = quiet(stand_in)
            if rule is not None:
                real, stand_in = self.processor.image_processor, copy.copy(stand_in)
                sized = SizedImages(real, rule, [(height, width) for width, height in sizes])
                stand_in.image_processor = sized
            fields = self._cut(self._tokens(stand_in, chat, [_DOT] * len(sizes), clips))
            return Probe(chat.key, self._cost(fields, sum(sized.units or ()) if sized else 0))
        except (NoRuleError, NotImplementedError) as error:
            # the latter of a video processor that looks at values
            return self._loaded_cost(record, str(error))
        except ValueError as error:
            raise _name_sample(chat.key, error) from error

    def _loaded_cost(self, record: Any, why: str) -> Probe:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s: no rule says what an image or a sound becomes (%s): "
                "samples are loaded to be measured",
                type(self.processor).__name__, why,
            )  # fmt: skip
        return Probe(find_key(record), self.cost(self(record)))

    def cost(self, sample: Mapping[str, Any]) -> dict[str, int]:
        """Return what a loaded sample costs: what `probe` says of its record."""
        if not self._has_images:
            return self._cost(sample, 0)
        is_patches = find_unit(self.processor) == "patches"
        if is_patches and "image_grid_thw" in sample:
            units = int(np.asarray(sample["image_grid_thw"]).prod(-1).sum())
        elif is_patches:
            side = self.processor.image_processor.patch_size
            side = side if isinstance(side, int) else side["height"]
            units = sum(patches_of_sizes(sample["image_sizes"], side))
        else:
            pixels = next((sample[name] for name in PIXELS if name in sample), np.zeros((0, 0, 0)))
            units = int(np.prod(np.shape(pixels)[:-3]))
        return self._cost(sample, units)

    def spec(self) -> dict[str, Any]:
        """Return name and JSON arguments for a remote worker; ValueError without a path."""
        if self._path is None:
            raise ValueError(
                "a processor that was given as an object has no name that workers elsewhere know: "
                "save it (processor.save_pretrained(folder)), and give the folder"
            )
        return {"name": find_import_name(type(self)), "args": self._settings(self._path)}

    def fingerprint(self) -> str:
        """Return a hash of the settings, the processor's and the tokenizer's."""
        if not self._fingerprint:
            # the fast tokenizers say all of themselves
            backend = getattr(self.tokenizer, "backend_tokenizer", None)
            words = backend.to_str() if backend is not None else sorted(self.tokenizer.get_vocab())
            facts = {"class": type(self.processor).__name__, "vocabulary": digest(words)}
            if self.processor is not self.tokenizer:
                facts["processor"] = self.processor.to_json_string()
            versions = library_versions("transformers", "tokenizers", "torchvision")
            template = find_template(self.processor, self.chat_template)
            self._fingerprint = digest([self._settings(""), template, facts, versions])
        return self._fingerprint

    def _settings(self, processor: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS} | {
            "processor": processor,
            "media_root": None if self.media_root is None else str(self.media_root),
            "frames": None if self.frames is None else asdict(self.frames),
        }

    @property
    def _has_images(self) -> bool:
        return getattr(self.processor, "image_processor", None) is not None

    def _cost(self, fields: Mapping[str, Any], units: int) -> dict[str, int]:
        cost = {"tokens": len(fields["input_ids"])}
        frames, of_videos = count_frames(fields, self.processor)
        if self._has_images:
            cost[find_unit(self.processor)] = units + of_videos
        if self.frames is not None:
            cost["frames"] = frames
        if sound_maker(self.processor) is not None:
            cost["mel_frames"] = count_mel_frames(fields, self.processor)
        return {**cost, "label_tokens": count_label_tokens(fields["labels"])}

    def _seen(self, chat: Chat, pictures: Sequence[Image.Image], clips: Clips) -> Tokens:
        """Return the sample of a chat with images, whole."""
        rule, tiles = find_rule(self.processor), None
        if rule is None or find_unit(self.processor) == "patches":
            tokens = self._tokens(self.processor, chat, pictures, clips)
        else:
            sizes = [(picture.height, picture.width) for picture in pictures]
            real = self.processor.image_processor
            watched = copy.copy(self.processor)
            watched.image_processor = SizedImages(real, rule, sizes, makes_pixels=True)
            tokens = self._tokens(watched, chat, pictures, clips)
            tiles = watched.image_processor.units
        fields = sample_fields(tokens.fields, self.processor, tiles)
        return Tokens({**fields, **clip_fields(tokens.fields)}, tokens.images_end)

    def _blank_fields(self) -> Fields:
        """Return the fields of images as they are in a sample without any: of no rows."""
        if self._blank is None:
            picture = Image.new("RGB", (64, 64))
            parts = [{"type": "image"}, {"type": "text", "text": "a"}]
            chat = Chat("", ({"role": "document", "content": parts},), (picture,))
            fields = self._seen(chat, [picture], Clips()).fields
            self._blank = {
                name: array[:0] if array.ndim else np.zeros_like(array)
                for name, array in fields.items()
                if name not in PER_TOKEN
            }
        return self._blank

    def _tokens(self, processor: Any, chat: Chat, pictures: Sequence[Any], clips: Clips) -> Tokens:
        """Return what a processor makes of a chat, with labels.

        Fields of tokens have no batch axis, those of images and clips are as they come.
        """
        if pictures and not self._has_images:
            raise ValueError(f"{len(pictures)} images, and {type(processor).__name__} takes none")
        template = find_template(processor, self.chat_template)
        text = render_text(chat, processor, self.tokenizer, template, self.template_kwargs)
        kind = "pt" if takes_torch_only(processor) else None
        arguments = clips.make_arguments({**self.processor_kwargs, "return_tensors": kind})
        try:
            tokens = tokenize(processor, self.tokenizer, text, pictures, arguments)
        except REFUSALS as error:
            if not pictures or type(error) not in REFUSALS:
                raise
            raise ValueError(f"the image processor refuses an image: {error!r}") from error
        clips.check(tokens.fields, processor)
        return tokens

    def _cut(self, tokens: Tokens) -> Fields:
        """Return the fields within max_length; ValueError where that may not be done."""
        fields, images_end = tokens
        count, most = len(fields["input_ids"]), self.max_length
        if most is not None and count > most:
            if self.overlong == "refuse":
                raise ValueError(
                    f"{count} tokens are over max_length={most}: raise it, or cut samples with "
                    'overlong="cut"'
                )
            if images_end > most:
                raise ValueError(
                    f"the last image, video or sound ends at token {images_end}, beyond max_length="
                    f"{most}: none is cut in its middle; raise it, or leave such samples out with "
                    'on_error="skip"'
                )
            fields = {n: value[:most] if n in PER_TOKEN else value for n, value in fields.items()}
        if not count_label_tokens(fields["labels"]):
            raise ValueError(
                f"nothing is learned: no label in {len(fields['input_ids'])} tokens; if max_length "
                'cut them off, raise it, or leave such samples out with on_error="skip"'
            )
        fields["labels"][0] = IGNORED  # nothing comes before it
        return fields


def _name_sample(key: str, error: ValueError) -> SampleError:
    return error if isinstance(error, SampleError) else SampleError(key, str(error))
