"""What a reader of hf-processor.md has: a processor."""

from tests.workers.hf_processor.families import make

processor = make("qwen2_5_vl")
