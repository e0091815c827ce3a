"""Every field of a record that changes its text is read alike in all forms, or refused by name."""

import numpy as np
import pytest

from counterpoise.workers import SampleError, VisionLanguage
from counterpoise.workers.hf_processor.records import read_record
from counterpoise.workers.jsonl.record_form import raw_form

SYSTEM = "Answer in French."
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "salut"}]
OPENAI = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "salut"}]
CHATS = {"conversations": SHAREGPT, "messages": OPENAI}
TRANSFORM = VisionLanguage(tile_size=8, tokens_per_tile=1)


def raw(record):
    return {"__key__": "a", **raw_form(record, lambda _: b"")}


def messages(record):
    return [(each["role"], each["content"]) for each in read_record(raw(record)).messages]


@pytest.mark.parametrize("chat", CHATS)
def test_a_field_system_is_the_first_turn(chat):
    beside = {"system": SYSTEM, chat: CHATS[chat]}
    inside = {chat: [{"role": "system", "content": SYSTEM}, *CHATS[chat]]}
    assert messages(beside) == messages(inside)
    samples = [TRANSFORM(raw(record)) for record in (beside, inside)]
    assert np.array_equal(samples[0]["input_ids"], samples[1]["input_ids"])
    assert TRANSFORM.probe(raw(beside)).cost["tokens"] == len(samples[1]["input_ids"])
    assert messages({**beside, "system": ""}) == messages({chat: CHATS[chat]})


def test_both_transforms_read_the_same_of_two_chats():
    both = {"conversations": SHAREGPT, "messages": OPENAI[:1] + SHAREGPT[1:]}
    assert messages(both) == messages({"messages": OPENAI})
    ours, wanted = (TRANSFORM(raw(each))["input_ids"] for each in (both, {"messages": OPENAI}))
    assert np.array_equal(ours, wanted)


def test_keys_that_a_table_leaves_empty_are_none():
    filled = [{"role": None, "content": None, **turn} for turn in SHAREGPT]
    assert messages({"messages": filled}) == messages({"messages": OPENAI})


TWO = [{"from": "system", "value": "Be brief."}, *SHAREGPT]
MASKED = [OPENAI[0], {**OPENAI[1], "weight": 0}]
IN_BOTH = {
    "two system prompts, the field system and the first of conversations": {
        "system": SYSTEM, "conversations": TWO},
    "two system prompts, the field system and the first of messages": {
        "system": SYSTEM, "messages": [{"role": "developer", "content": ""}, *OPENAI]},
    "turn 0 has no text": {"system": {"text": SYSTEM}, "messages": OPENAI},
    "system beside a text that is no chat: not read": {"system": SYSTEM, "text": "salut"},
    "tools beside a text that is no chat": {"tools": [{"name": "look"}], "document": "salut"},
    "chat_template_kwargs beside messages: not read, and without it another text would be": {
        "chat_template_kwargs": {"enable_thinking": False}, "messages": OPENAI},
    "turn 1 has weight=0, and every turn of the assistant is learned": {"messages": MASKED},
    "turn 1 has loss=False": {"messages": [OPENAI[0], {**OPENAI[1], "loss": False}]},
    r"no text: needed is one of .*has: history, query, response": {
        "query": "hi", "response": "salut", "history": [["a", "b"]]},
    "turn 1 is from 'function_call'; known are": {
        "conversations": [SHAREGPT[0], {"from": "function_call", "value": "{}"}]},
    r"turn 1 is from \['gpt'\]; known are": {
        "conversations": [SHAREGPT[0], {"from": ["gpt"], "value": "a"}]},
}  # fmt: skip


@pytest.mark.parametrize("reason", IN_BOTH)
def test_what_neither_transform_reads_is_refused_by_both(reason):
    for action in (read_record, TRANSFORM, TRANSFORM.probe):
        with pytest.raises(SampleError, match=f"sample 'a': {reason}"):
            action(raw(IN_BOTH[reason]))


CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "look"}]}
OF_A_TEMPLATE = {
    "tools beside conversations: not read": {"tools": "[{}]", "conversations": SHAREGPT},
    "videos beside messages: not read": {"videos": ["a.mp4"], "messages": OPENAI},
    "audio beside messages: not read": {"audio": "a.wav", "messages": OPENAI},
    "mp4 is in a chat, and only images are read": {"video": b"", "messages": OPENAI},
    "turn 1 has tool_calls, which only a chat template": {"messages": [OPENAI[0], CALL]},
    "turn 1 has reasoning_content": {
        "messages": [OPENAI[0], {**OPENAI[1], "reasoning_content": "hm"}]},
}  # fmt: skip


@pytest.mark.parametrize("reason", OF_A_TEMPLATE)
def test_what_only_a_processor_reads_is_refused_without_one(reason):
    assert read_record(raw(OF_A_TEMPLATE[reason])).messages
    for action in (TRANSFORM, TRANSFORM.probe):
        with pytest.raises(SampleError, match=f"sample 'a': {reason}"):
            action(raw(OF_A_TEMPLATE[reason]))


def test_an_image_that_is_named_and_not_there_is_an_error():
    for text in ({"messages": OPENAI}, {"caption": "a cat"}):
        with pytest.raises(SampleError, match=r"image is 'cat\.jpg', and the sample has no image"):
            TRANSFORM({"__key__": "a", "json": {"image": "cat.jpg", **text}})


def test_two_columns_of_one_kind_are_refused():
    record = {"images": ["a.png"], "image": "b.png", "messages": OPENAI}
    with pytest.raises(ValueError, match="both images and image have images: leave one of them"):
        raw(record)
    with pytest.raises(SampleError, match="both images and image have images"):
        read_record(record)
    assert len(read_record({**record, "images": []}).images) == 1


def test_tools_may_be_a_text_of_json():
    chats = [read_record({"tools": each, "messages": OPENAI}) for each in ('[{"n": 1}]', "", "[]")]
    assert [chat.tools for chat in chats] == [[{"n": 1}], None, None]
    with pytest.raises(SampleError, match="tools is no JSON"):
        read_record({"tools": "look", "messages": OPENAI})
