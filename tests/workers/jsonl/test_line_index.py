"""Where records are, and what they are called: found once, kept, and never believed blindly."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from counterpoise.workers.jsonl import line_index
from counterpoise.workers.jsonl.line_index import open_index, scan

BOM = b"\xef\xbb\xbf"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=6)


def keys(index):
    return [index.key(row, "a") for row in range(len(index))]


def records(path, index):
    data = path.read_bytes()
    places = [index.place(row) for row in range(len(index))]
    return [json.loads(data[place.start : place.start + place.size]) for place in places]


@pytest.fixture
def file(tmp_path):
    def make(data, name="a.jsonl"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return make


@settings(max_examples=40)
@given(
    found=RECORDS, begin=st.sampled_from([b"", BOM]),
    end=st.sampled_from([b"\n", b"\r\n", b"\n\n \n"]), escaped=st.booleans(), is_torn=st.booleans(),
)  # fmt: skip
def test_each_line_that_is_not_blank_is_a_record(
    tmp_path_factory, found, begin, end, escaped, is_torn
):
    lines = [json.dumps(each, ensure_ascii=escaped).encode("utf-8", "replace") for each in found]
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(begin + end.join(lines) + (b"" if is_torn else end))
    assert records(path, scan(path, "")) == [json.loads(line) for line in lines]


@settings(max_examples=40)
@given(
    found=RECORDS, indent=st.sampled_from([None, 2]), begin=st.sampled_from([b"", BOM, b" \n"]),
    escaped=st.booleans(),
)  # fmt: skip
def test_an_array_and_an_object_have_the_records_of_lines(
    tmp_path_factory, found, indent, begin, escaped
):
    path = tmp_path_factory.mktemp("whole") / "a.json"
    text = json.dumps(found, indent=indent, ensure_ascii=escaped)
    path.write_bytes(begin + text.encode("utf-8", "replace") + b"\n")
    index = scan(path, "")
    assert records(path, index) == json.loads(text.encode("utf-8", "replace"))
    by_id = {f"é{number}": record for number, record in enumerate(found)}
    text = json.dumps(by_id, indent=indent, ensure_ascii=escaped)
    path.write_bytes(begin + text.encode("utf-8", "replace"))
    index = scan(path, None)
    named = json.loads(text.encode("utf-8", "replace"))
    assert dict(zip(keys(index), records(path, index), strict=True)) == named


def test_a_record_is_called_by_its_id_or_its_line(file):
    path = file(
        b'{"id": "x"}\n\n{"key": 7}\n{"id": true, "key": null}\n{"__key__": "k", "id": 1}\n'
    )
    assert keys(scan(path, None)) == ["x", "7", "a:4", "k"]
    assert keys(scan(path, "id")) == ["x", "a:3", "a:4", "1"]
    assert keys(scan(path, "")) == ["a:1", "a:3", "a:4", "a:5"]


def test_what_is_no_json_has_its_line_and_harms_no_other(file):
    path = file(b'{"id": "a"}\n{"id": "b", \xff\n[1]\n{"id": "c", "x": NaN}\n{"id": "d"')
    assert keys(scan(path, None)) == ["a", "a:2", "a:3", "c", "a:5"]


def test_lines_of_json_may_be_called_json(file):
    assert keys(scan(file(b'{"id": "a"}\n{"id": "b"}\n', "a.json"), None)) == ["a", "b"]
    assert keys(scan(file(b'{"id": "a", "n": 1}\n', "a.json"), None)) == ["a"]
    assert keys(scan(file(b'{"a": {"n": 1}}\n', "a.json"), None)) == ["a"]


@pytest.mark.parametrize("data", [b"[]", b"{}", b"", b"\n \n", BOM])
def test_a_file_without_records_is_empty(file, data):
    assert len(scan(file(data, "a.json"), None)) == (data == b"{}")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'[{"a": 1}, {"a": 2}', "ends too early: at character 19"),
        (b'[{"a": 1} {"a": 2}]', "at character 10"),
        (b'[{"a": 1}] x', "goes on after its JSON value, at character 10"),
        (b'{"images": [1],\n "annotations": [2]}', "one object, and its 'images' is none"),
        (b'{"a": {}, "b" 1}\n', "a colon is missing at character 14"),
        (b"tiles,tokens\n1,2\n", "no JSON array, no object"),
        (b'[{"a": "\xff"}]', "can't decode byte 0xff in position 8"),
        (b"[" * 100_000, "recursion"),
        (b'[{"id": 1}, {"id": 2}, {"id": 1}]', "'1' names record 1 and record 3; .* give key="),
    ],
)
def test_what_is_no_json_file_is_one_line_that_names_it(file, data, reason):
    path = file(data, "a.json")
    with pytest.raises(ValueError, match=reason) as raised:
        scan(path, None)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_an_id_that_occurs_twice_is_an_error_that_names_both_lines(file):
    path = file(b'{"id": "a"}\n\n{"id": "b"}\n{"id": "a"}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl: 'a' names record 1 and record 4; keys must"):
        scan(path, None)
    assert keys(scan(path, "")) == ["a:1", "a:3", "a:4"]


def test_compressed_files_are_refused(file):
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz is compressed, .*: unpack it"):
        scan(file(b"\x1f\x8b", "a.jsonl.gz"), None)


def test_a_huge_line_is_passed_over_in_pieces(file, monkeypatch):
    monkeypatch.setattr(line_index, "MOST_BYTES", 1000)
    huge = b'{"id": "h", "x": "' + b"x" * 3_000_000 + b'"}'
    path = file(b'{"id": "a"}\n' + huge + b'\n{"id": "b"}\n' + huge)
    index = scan(path, None)
    assert keys(index) == ["a", "a:2", "b", "a:4"]
    assert [index.place(row).size for row in range(4)] == [11, len(huge), 11, len(huge)]


LINES = b"".join(b'{"id": "r%d", "n": %d}\n' % (n, n) for n in range(20))


def test_an_index_is_kept_until_the_file_changes(file, tmp_path, monkeypatch):
    path = file(LINES)
    whole = open_index(path, None, tmp_path / "cache")
    with monkeypatch.context() as patched:
        patched.setattr(line_index, "scan", None)
        again = open_index(path, None, tmp_path / "cache")
    assert keys(again) == keys(whole)
    assert again.digest == whole.digest
    path.write_bytes(LINES + b'{"id": "new"}\n')
    assert len(open_index(path, None, tmp_path / "cache")) == 21
    assert keys(open_index(path, "", tmp_path / "cache"))[0] == "a:1"


def test_the_digest_is_of_names_and_content(file):
    first = scan(file(LINES), None).digest
    assert scan(file(LINES, "b.jsonl"), None).digest == first
    assert scan(file(LINES.replace(b'"n": 3}', b'"n": 4}')), None).digest != first
    assert scan(file(LINES), "n").digest != first


def test_a_name_by_file_and_line_differs_from_all_ids(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "a.jsonl:2"}\n{"x": 1}\n')
    with pytest.raises(ValueError, match=r"record 1 is called 'a\.jsonl:2', as is record 2"):
        scan(path, None)
    path.write_text('{"id": "a.jsonl:2"}\n{"id": "b"}\n')
    assert len(scan(path, None)) == 2
