"""Reads $COUNTERPOISE_STORE, by which all processes of a host read stores in the same way.

COUNTERPOISE_STORE="ahead=200MB,requests=32"
"""

import os
import re
from dataclasses import dataclass, fields
from typing import Self

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
VARIABLE = "COUNTERPOISE_STORE"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a process reads stores.

    requests: at the same time. ahead: bytes that are being read or wait to be taken. timeout:
    seconds without an answer after which a request is made again. tries: of a request.

    >>> StoreOptions.parse("ahead=2GB, tries=3")
    StoreOptions(requests=64, ahead=2000000000, timeout=20, tries=3)
    """

    requests: int = 64
    ahead: int = 64 * 10**6
    timeout: float = 20
    tries: int = 6

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the options that a text gives; ValueError says what can be given."""
        settings = dict[str, float]()
        allowed = {field.name for field in fields(cls)}
        for part in filter(None, re.split(r"[,\s]+", text)):
            name, _, value = part.partition("=")
            match = re.fullmatch(r"([0-9]+(?:[.][0-9]+)?)(|[KMGT]B)", value)
            if name not in allowed or match is None:
                raise ValueError(
                    f"{VARIABLE} has {part!r:.80}: write name=number, as "
                    f'"ahead=200MB,requests=32", with {", ".join(sorted(allowed))}'
                )
            number = float(match[1]) * UNITS[match[2]]
            settings[name] = number if name == "timeout" else int(number)
        options = cls(**settings)  # type: ignore[arg-type]
        if options.requests < 1 or options.tries < 1 or options.timeout <= 0:
            raise ValueError(f"{VARIABLE}: requests and tries are at least 1, timeout above 0")
        return options

    @classmethod
    def from_environment(cls) -> Self:
        """Return the options of this process."""
        return cls.parse(os.environ.get(VARIABLE, ""))
