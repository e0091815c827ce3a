"""Tar shards as JSON with images in files beside it, in the forms that people have."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from counterpoise.workers import TarDataset
from counterpoise.workers.vision_language.transform import image_members

Record = dict[str, Any]


def write_lines(path: Path, records: list[Any]) -> Path:
    """Write a record in each line; what is bytes is written as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def records_of(source: TarDataset, folder: Path) -> dict[str, list[Record]]:
    """Return the records of each shard, by its name, and write their images below a folder."""
    found: dict[str, list[Record]] = {}
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for index in range(len(source)):
        raw = source.raw(index)
        names = [f"images/{raw['__key__']}.{name}" for name in image_members(raw)]
        for name in names:
            (folder / name).write_bytes(raw[name.partition(".")[2]])
        about = {"id": raw["__key__"], "images": names}
        found.setdefault(Path(source.locate_file(index)).stem, []).append({**raw["json"], **about})
    return found


def as_lines(source: TarDataset, folder: Path) -> Path:
    """Repack shards as JSONL, a file for each shard."""
    for name, records in records_of(source, folder).items():
        write_lines(folder / f"{name}.jsonl", records)
    return folder


def as_array(source: TarDataset, folder: Path) -> Path:
    """Repack shards as JSON arrays."""
    for name, records in records_of(source, folder).items():
        (folder / f"{name}.json").write_text(json.dumps(records, indent=1, ensure_ascii=False))
    return folder


def as_object(source: TarDataset, folder: Path) -> Path:
    """Repack shards as JSON objects of records by their id."""
    for name, records in records_of(source, folder).items():
        by_id = {record.pop("id"): {**record, "key": None} for record in records}
        (folder / f"{name}.json").write_text(json.dumps(by_id, ensure_ascii=False))
    return folder


def _openai(record: Record) -> Record:
    """Return a record as OpenAI has it, with an image in each part that shows one."""
    said, images = record.get("conversations"), iter(record["images"])
    if said is None:
        return record

    def content(text: str) -> list[Record]:
        first, *rest = text.split("<image>")
        parts: list[Record] = [{"type": "text", "text": first}] if first else []
        for each in rest:
            parts.append({"type": "image_url", "image_url": {"url": next(images)}})
            parts += [{"type": "text", "text": each}] if each else []
        return parts

    shown = sum(turn["value"].count("<image>") for turn in said)
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles[turn["from"]], "content": content(turn["value"])} for turn in said]
    if not shown:
        parts = ({"type": "image_url", "image_url": {"url": each}} for each in images)
        messages[0]["content"] = [*parts, *messages[0]["content"]]
    rest = {name: record[name] for name in record if name not in ("conversations", "images")}
    return {**rest, "messages": messages}


def as_openai(source: TarDataset, folder: Path) -> Path:
    """Repack shards as JSONL of OpenAI's messages."""
    for name, records in records_of(source, folder).items():
        write_lines(folder / f"{name}.jsonl", [_openai(record) for record in records])
    return folder


FORMS: dict[str, Callable[[TarDataset, Path], Path]] = {
    "lines": as_lines, "array": as_array, "object": as_object, "openai": as_openai,
}  # fmt: skip
