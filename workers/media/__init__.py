"""Video and audio for transforms: measured from headers, decoded within bounds.

    from counterpoise import media

`probe_video` and `probe_audio` say beforehand exactly what `decode_video` and `decode_audio` give:
a transform's `probe` calls the one and its `__call__` the other, with the same arguments. PyAV
(video) and soundfile (audio) are imported when they are first used:
pip install 'counterpoise[media]'.
"""

from .audio import AudioInfo, decode_audio, probe_audio
from .files import MediaError
from .video import FrameRule, VideoInfo, decode_video, probe_video

__all__ = [
    "AudioInfo",
    "FrameRule",
    "MediaError",
    "VideoInfo",
    "decode_audio",
    "decode_video",
    "probe_audio",
    "probe_video",
]
