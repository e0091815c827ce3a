"""DeepSeek V2 and V3: what is special about them is in their layers; routers have no loss."""

from .description import DecoderFamily

FAMILIES = {"deepseek_v2": DecoderFamily(), "deepseek_v3": DecoderFamily()}
