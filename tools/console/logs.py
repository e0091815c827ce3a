"""The log of a service: a line an event, as text or as JSON, through the standard logging."""

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import click

from ...workers.sources.visible_text import visible

LEVELS = ("debug", "info", "warning", "error")
# What a line says beside its text, where it is about one (`extra=` of the standard logging).
FIELDS = ("event", "job", "rank", "worker", "key")


class JsonLines(logging.Formatter):
    """Formats each record as one JSON object in a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {"time": f"{at}.{record.msecs:03.0f}Z", "level": record.levelname.lower()}
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        line["message"] = record.getMessage()
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class TextLines(logging.Formatter):
    """Formats a record as time and text, with names that others chose made safe to show."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return a record's line, without its error."""
        return visible(super().formatMessage(record).replace("\n", "\\n"))


def log_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --log-level and --log-format to a command; both go to `set_up_logs`."""
    level = click.option(
        "--log-level", type=click.Choice(LEVELS), default="info", show_default=True
    )
    form = click.option(
        "--log-format", type=click.Choice(("text", "json")), default="text", show_default=True,
        help=f"json: an object a line, with {', '.join(FIELDS)}.",
    )  # fmt: skip
    return level(form(command))


def set_up_logs(level: str, form: str) -> None:
    """Log to standard error from now on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
