"""Files of users that are wrong in every way: one line that names file, column and what to do."""

import importlib
import io
import json
import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoise.tools.cli import main

OK = np.arange(1, 5)
# What reading a file of a few KB may take beside what commands take anyway.
MOST_BYTES = 64 << 20


def npy(header: str, body: bytes = b"", version: int = 1) -> bytes:
    raw = header.encode()
    size = len(raw).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + raw + body


def described(descr: str = "'<i8'", shape: str = "(4,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def saved(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def headed(header: str, body: bytes = b"") -> bytes:
    return zipped(tokens=npy(header, body))


def forged() -> bytes:
    """Return an npz file whose directory says that a member has 4 GB."""
    data = bytearray(npz(tokens=OK))
    at = data.rfind(b"PK\x01\x02") + 24
    data[at : at + 4] = b"\xf0\xff\xff\xff"
    return bytes(data)


def flipped() -> bytes:
    data = bytearray(npz(tokens=np.arange(1000)))
    data[300] ^= 255
    return bytes(data)


def lines(*rows: Any) -> bytes:
    return "".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows).encode()


# For each file its bytes and what is said of it.
TABLES: dict[str, tuple[bytes, str]] = {
    "empty.npz": (b"", "cannot be read (BadZipFile"),
    "text.npz": (b"no table", "cannot be read (BadZipFile"),
    "cut.npz": (npz(tokens=np.arange(1000))[:4000], "cannot be read (BadZipFile"),
    "end.npz": (npz(tokens=OK)[:-5], "write it again"),
    "bit.npz": (flipped(), "column 'tokens' cannot be read (BadZipFile: Bad CRC-32"),
    "none.npz": (npz(), "it has no columns: say which are costs with --resource NAME"),
    "array.npz": (saved(OK), "cannot be read (BadZipFile"),
    "pickle.npz": (zipped(tokens=pickle.dumps([1])), "column 'tokens' cannot be read"),
    "objects.npz": (npz(tokens=np.array([1, None], object)), "Object arrays cannot be loaded"),
    "names.npz": (npz(tokens=OK, key=np.array([{}] * 4)), "column 'key' cannot be read"),
    "32tb.npz": (headed(described(shape="(4000000000000,)")), "says that it has 32000000000000 b"),
    "square.npz": (headed(described(shape="(4398046511104, 4398046511104)")), "says that it has"),
    "digits.npz": (headed(described(shape=f"({'9' * 50},)")), "says that it has"),
    "digits2.npz": (headed(described(shape=f"({'9' * 5000},)")), "Cannot parse header"),
    "minus.npz": (headed(described(shape="(-1,)")), "negative dimensions"),
    "wide.npz": (headed(described("'V2147483647'", "(1000,)")), "says that it has 2147483647000"),
    "text2.npz": (zipped(tokens=saved(OK), key=npy(described("'<U500000000'"))), "column 'key' ca"),
    "nested.npz": (headed("(" * 4000 + ")" * 4000), "column 'tokens' cannot be read"),
    "braces.npz": (headed("{" * 9000), "column 'tokens' cannot be read"),
    "types.npz": (headed(described("[" * 200 + "]" * 200)), "column 'tokens' cannot be read"),
    "signs.npz": (headed("-" * 9000 + "1"), "column 'tokens' cannot be read (MemoryError"),
    "long.npz": (headed(described() + " " * 50000), "Header info length (50058) is large"),
    "code.npz": (headed("__import__('os').getpid()"), "malformed node"),
    "magic.npz": (zipped(tokens=b"\x93NUMPY"), "column 'tokens' cannot be read"),
    "version.npz": (zipped(tokens=npy(described(), version=9)), "we only support format version"),
    "header.npz": (zipped(tokens=b"\x93NUMPY\x02\0\xff\xff\xff\xffab"), "4294967295 bytes got 2"),
    "short.npz": (headed(described(), bytes(8)), "expected 32 bytes got 8"),
    "bool.npz": (headed(described(shape="(True,)"), bytes(8)), "an integer is required"),
    "size.npz": (forged(), "says that it has 4294967280 bytes: more than fit the file"),
    "0d.npz": (npz(tokens=np.array(5)), "column 'tokens' has shape (); give one number per row"),
    "0d2.npz": (npz(tiles=OK, tokens=np.array(5)), "column 'tokens' has shape ()"),
    "2d.npz": (npz(tokens=np.ones((4, 2), int)), "column 'tokens' has shape (4, 2)"),
    "32d.npz": (npz(tokens=np.ones((1,) * 32, int)), "column 'tokens' has shape (1, 1"),
    "rows.npz": (npz(tokens=np.ones(0, int)), "there is no sample in it"),
    "ragged.npz": (npz(tiles=np.arange(3), tokens=OK), "'tokens' has 4 rows, 'tiles' has 3"),
    "bools.npz": (npz(tokens=np.array([True])), "column 'tokens' holds bool; costs must be whole"),
    "complex.npz": (npz(tokens=np.array([1j])), "column 'tokens' holds complex128"),
    "bytes.npz": (npz(tokens=np.array([b"1"])), "column 'tokens' holds |S1"),
    "dates.npz": (npz(tokens=np.array(["2020"], "M8[D]")), "column 'tokens' holds datetime64[D]"),
    "record.npz": (npz(tokens=np.zeros(3, [("a", int)])), "column 'tokens' holds [('a', '<i8')]"),
    "negative.npz": (npz(tokens=np.array([-1])), "negative.npz, row 0: cost 'tokens' is -1, allow"),
    "nan.npz": (npz(tokens=np.array([np.nan])), "nan.npz, row 0: cost 'tokens' is nan, allowed"),
    "huge.npz": (npz(tokens=np.array([1 << 63], np.uint64)), "cost 'tokens' is 92233720368547758"),
    "parts.npz": (npz(tokens=np.array([0.5])), "cost 'tokens' is 0.5"),
    "keys.npz": (npz(tokens=OK, key=np.array(["a"])), "column 'key' has 1 rows, 'tokens' has 4"),
    "sources.npz": (npz(tokens=OK, source=OK * 0, sources=np.array("a")), "'sources' has shape ()"),
    "ключ.npz": (npz(ключ=OK), "ключ.npz has none of the columns"),
    "many.npz": (npz(**{f"c{n}": OK for n in range(40)}), "and 20 more: say which are costs"),
    "blank.jsonl": (b"\n\n", "no samples in 1 files"),
    "text.jsonl": (b"no json\n", "line 1 is not JSON (Expecting value: line 1 column 1 (char 0)):"),
    "utf16.jsonl": ('{"tokens": 3}\n'.encode("utf-16"), "record 1 is no JSON ('utf-8' codec"),
    "deep.jsonl": (lines("[" * 100_000), "record 1 is no JSON (maximum recursion"),
    "number.jsonl": (lines("3"), "line 1 is not a JSON object: write one for each sample, such as"),
    "wrong.jsonl": (lines({"pixels": 3}), "it has pixels: say which are costs"),
    "large.jsonl": (lines({"tokens": 1 << 2000}), "row 0: cost 'tokens' is inf, allowed are"),
    "words.jsonl": (lines({"tokens": "7"}), "column 'tokens' holds <U1"),
    "null.jsonl": (lines({"tokens": None}), "cost 'tokens' is nan"),
    "other.jsonl": (lines({"tokens": 3}, {"tiles": 3}), "row 0: cost 'tiles' is nan"),
    "table.csv": (b"tokens\n3\n", "give costs as .npz, .jsonl, .parquet, or a dataset"),
    "array.npy": (saved(OK), "give costs as .npz, .jsonl, .parquet, or a dataset"),
    "list.pkl": (pickle.dumps([1]), "give costs as .npz, .jsonl, .parquet, or a dataset"),
    "no.parquet": (b"no", "no parquet file: Parquet file size is 2"),
    "magic.parquet": (b"PAR1" + bytes(50) + b"PAR1", "no parquet file: Couldn't"),
}
# The same of files that have more than the numbers that are wanted: these are read.
ODD: dict[str, bytes] = {
    "ODD.NPZ": zipped(
        tokens=saved(OK),
        meta=saved(np.array([{}], object)),
        pixels=npy(described(shape="(4000000000000,)")),
        source=saved(np.array(["²", "9" * 5000, "\ud800", "<b>"])),
    ),
    "long.npz": npz(tokens=np.full(60, 1 << 40), tiles=np.full(60, 1 << 40)),
    "odd.jsonl": b"\xef\xbb\xbf"
    + lines({"tokens": 3}, "[" * 100_000, *({f"c{n}": 1, "tokens": 1} for n in range(9))),
}
Said = tuple[int, str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*words: object) -> Said:
        with pytest.raises(SystemExit) as end:
            main(list(map(str, words)))
        assert isinstance(end.value.code, int)
        return end.value.code, capsys.readouterr().err

    return call


def one_line(error: str) -> str:
    """Return the line that begins with the program's name; it is the last, and bounded."""
    (line,) = (each for each in error.splitlines() if each.startswith("counterpoise: "))
    assert error.rstrip().endswith(line)
    assert len(line) < 2200
    return line


def written(path: Path, data: bytes) -> Path:
    if path.suffix == ".parquet":
        pytest.importorskip("pyarrow")
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("name", TABLES)
def test_analyze_says_in_a_line_what_is_wrong_with_a_table(
    run: Callable[..., Said], tmp_path: Path, name: str
) -> None:
    data, message = TABLES[name]
    path = written(tmp_path / name, data)
    tracemalloc.start()
    try:
        status, error = run("analyze", path, "--out", tmp_path / "out", "--workers", 1)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()
    line = one_line(error)
    assert status == 2
    assert name in line
    assert message in line


@pytest.mark.parametrize("name", ODD)
def test_what_nobody_asks_for_does_no_harm(
    run: Callable[..., Said], tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / name, ODD[name])
    words = ("--ranks", 2, "--out", tmp_path / "out", "--workers", 1)
    assert run("analyze", path, *words)[0] == 0


@pytest.mark.parametrize("name", [n for n in TABLES if n.endswith("npz")])
def test_costs_of_plans_are_read_so_too(
    run: Callable[..., Said], tmp_path: Path, name: str
) -> None:
    path = written(tmp_path / name, TABLES[name][0])
    plan = (*ORCHESTRATE, "--model", "mllm-9b", "--gpus", 24, "--samples-per-step", 24)
    status, error = run(*plan, "--data", path)
    if status:  # what is about other columns is nothing to it
        assert status == 2
        assert name in one_line(error)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1], [2]], "column 'tokens' holds object"),
        ([None, None], "column 'tokens' holds object"),
        ([True], "column 'tokens' holds bool"),
        ([-1], "cost 'tokens' is -1"),
        ([], "no samples in 1 files"),
    ],
)
def test_columns_of_parquet(
    run: Callable[..., Said], tmp_path: Path, column: Any, message: str
) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"tokens": column if column else pyarrow.array([], "int64")})
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "t.parquet")
    status, error = run("analyze", tmp_path / "t.parquet", "--out", tmp_path / "out")
    assert (status, "t.parquet" in one_line(error)) == (2, True)
    assert message in error


DEEP, BYTES = b"[" * 100_000, b"\xff\xfe\0"
PART = ("plan", "job", "--only")
MODEL = (*PART, "partition", "--model", "internvit-6b+internlm2-20b")
PARTITION = (*MODEL, "--parallel", "pp=4")
ORCHESTRATE = (*PART, "orchestrate")
LAYER = {"kind": "a", "forward_ns": 1, "backward_ns": 1, "parameters": 1, "output_bytes": 1}


@pytest.mark.parametrize(
    "words",
    [
        ("schedule", "check", "FILE.txt"), ("schedule", "check", "FILE.csv"),
        ("schedule", "show", "FILE.json"), ("schedule", "simulate", "1f1b", "--costs", "FILE"),
        ("schedule", "fill", "--profile", "FILE"),
        (*ORCHESTRATE, "--gpus", "8", "--samples-per-step", "8", "--model", "FILE"),
        (*PART, "partition", "--parallel", "pp=2", "--model", "FILE"),
        (*PARTITION, "--device", "FILE"), (*PARTITION, "--measured", "FILE"),
        (*PART, "recompute", "--measured", "FILE"), ("doctor", "FILE"),
        ("doctor", "--dead-letter", "FILE"), ("profile", "FILE"),
    ],
    ids=lambda words: " ".join(words[:4]) + words[-2],
)  # fmt: skip
@pytest.mark.parametrize("data", [b"{}", b"[]", DEEP, BYTES, b'{"a": %s}' % (b"9" * 5000)])
def test_texts_are_named_in_a_line(
    run: Callable[..., Said], tmp_path: Path, words: tuple[str, ...], data: bytes
) -> None:
    path = tmp_path / words[-1]
    last = words.index(next(word for word in words if word.startswith("FILE")))
    path.write_bytes(data)
    status, error = run(*words[:last], path, *words[last + 1 :])
    assert status == 2
    assert path.name in one_line(error)


# --- sizes, before anything is made of them

HEAD = "placement: 0\nmicrobatches: "


@pytest.mark.parametrize("command", ["show", "check", "simulate", "export"])
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "0F999999999,0B999999999\n", "1 x 1000000000, and passes with numbers up to"),
        ("b.csv", "999999999F0,0B0\n", "stage 1 is on no rank; number the stages 0 to 999999999"),
        ("c.txt", f"{HEAD}999999999\n0: 0F0 0B0\n", "at most 200000 stages x microbatches"),
        ("d.txt", f"{HEAD}1\n0: {'9' * 400}F0\n", "at most 200000 stages x microbatches"),
        ("e.txt", "placement: 999999999\nmicrobatches: 1\n0: 0F0 0B0\n", "at most 200000 stages"),
        ("f.csv", '"' + "x" * 200_000, "field larger than field limit"),
    ],
)
def test_a_short_file_of_a_huge_program_is_refused(
    run: Callable[..., Said], tmp_path: Path, command: str, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    status, error = run("schedule", command, tmp_path / name)
    assert status == 2
    assert name in one_line(error)
    assert message in error


HUGE = 10**9


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (("schedule", command, schedule, option, HUGE), f"{option[2:]} {HUGE} x|{HUGE} are")
            for command in ("show", "check", "simulate", "export", "compare")
            for schedule in ("1f1b", "zbv", "interleaved")
            for option in ("--ranks", "--microbatches")
        ),
        (("schedule", "check", f"interleaved:chunks={HUGE}"), f"chunks {HUGE} are more"),
        (("schedule", "simulate", "1f1b", "--costs", "f=1e300"), "times of F"),
        (
            ("schedule", "fill", "--parallel", f"microbatches={HUGE}"),
            f"--parallel got 'microbatches={HUGE}'",
        ),
        (
            (*MODEL, "--parallel", f"pp=4,microbatches={HUGE}"),
            f"--parallel got 'microbatches={HUGE}'",
        ),
        ((*MODEL, "--parallel", f"pp={HUGE}"), f"--parallel got 'pp={HUGE}'"),
        ((*MODEL, "--parallel", f"pp={'9' * 5000}"), "--parallel"),
        (
            (*ORCHESTRATE, "--model", "mllm-72b", "--gpus", 96, "--samples-per-step", "9" * 30),
            "too large",
        ),
        (("analyze", "costs.npz", "--budget", "tokens=²"), "--budget got 'tokens=²'"),
        (("analyze", "costs.npz", "--budget", f"tokens={'9' * 5000}"), "--budget got 'tokens=999"),
        *(
            (("analyze", "costs.npz", f"--{option}", HUGE), "are more than 200000: give fewer")
            for option in ("ranks", "accumulate", "batch-size")
        ),
    ],
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, tuple) else "",
)
def test_huge_numbers_are_refused_before_anything_is_made(
    run: Callable[..., Said],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[object, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("costs.npz").write_bytes(npz(tokens=OK))
    status, error = run(*words)
    assert status == 2
    assert any(part in one_line(error) for part in message.split("|"))


def test_a_file_of_layers_has_a_limit(run: Callable[..., Said], tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"layers": [{**LAYER, "count": 10**12}]}))
    status, error = run(*PART, "partition", "--model", path, "--parallel", "pp=2")
    assert status == 2
    assert "layers.json has 1000000000000 layers, and 1000 are planned at most" in one_line(error)
