"""Shards in S3, as moto serves it: by s3fs, and by obstore in workers; also analyze and doctor."""

import json
import logging
import multiprocessing
import os
import pickle
import urllib.request
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Subset

import counterpoise
from counterpoise.balancer.planning.mixing.recipe import Recipe
from counterpoise.tools.cli import main
from counterpoise.workers.mixture.rows import MixtureRows
from counterpoise.workers.sources.failures import DataChangedError
from counterpoise.workers.sources.offered import reads_stores
from counterpoise.workers.sources.plain import PlainSource, as_source
from counterpoise.workers.stores import allowed, files, obstore_store
from counterpoise.workers.stores.files import list_urls, open_url
from counterpoise.workers.tar.dataset import TarDataset
from tests.workers.stores.servers import SECRET, begin_anew, s3_environment

pytest.importorskip("s3fs")
boto3 = pytest.importorskip("boto3")
moto_server = pytest.importorskip("moto.server")
# Not imported: then it would not be used in children of this process.
needs_obstore = pytest.mark.skipif(not obstore_store.is_installed(), reason="needs obstore")
FIXED = counterpoise.Balance("fixed")


def stored_ranges(data, index):
    return list(as_source(data).stored_ranges(index, False))


@pytest.fixture(scope="module")
def endpoint():
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    server.stop()


@pytest.fixture
def s3(endpoint, monkeypatch, tmp_path):
    """A client of an empty S3 with a bucket "shards"."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COUNTERPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COUNTERPOISE_STORE", "tries=3")
    monkeypatch.setattr(allowed, "_prefixes", None)
    call(endpoint, "reset")
    client = boto3.client("s3")
    client.create_bucket(Bucket="shards")
    begin_anew()
    yield client
    begin_anew()


def call(endpoint, action, data=b""):
    kind = {"Content-Type": "text/plain"}
    request = urllib.request.Request(f"{endpoint}/moto-api/{action}", data, kind, method="POST")
    urllib.request.urlopen(request).close()


@pytest.fixture
def local(s3, shard, picture):
    """A folder of two shards, which are also s3://shards/train/t-00{0,1}.tar."""
    for number in range(2):
        members = dict[str, object]()
        for sample in range(10):
            key = f"{number}-{sample}"
            members[f"{key}.json"] = {"caption": key, "source": f"web{sample % 2}"}
            members[f"{key}.png"] = picture(16 + sample, 16, seed=10 * number + sample)
        path = shard(f"train/t-{number:03}.tar", members)
        s3.upload_file(str(path), "shards", f"train/{path.name}")
    s3.put_object(Bucket="shards", Key="train/readme.txt", Body=b"no shard")
    return path.parent


def digests(dataset):
    return [pickle.dumps(dataset[index]) for index in range(len(dataset))]


@pytest.mark.parametrize(
    "pattern",
    [
        "s3://shards/train",
        "s3://shards/train/",
        "s3://shards/train/*.tar",
        "s3://shards/train/t-{000..001}.tar",
        ["s3://shards/train/t-001.tar", "s3://shards/train/t-000.tar"],
    ],
)
def test_a_pattern_gives_the_samples_of_local_files(local, pattern):
    stored, wanted = TarDataset(pattern), TarDataset(local)
    assert stored.data_digest() == wanted.data_digest()
    assert stored.locate_file(19) == "s3://shards/train/t-001.tar"
    if isinstance(pattern, list):
        assert digests(stored) == digests(wanted)
        assert [stored.probe(n) for n in range(20)] == [wanted.probe(n) for n in range(20)]


def test_names_of_any_letters_are_read_and_another_key_is_never_taken(s3, local):
    body = (local / "t-000.tar").read_bytes()
    for key in ("odd/a[x]*.tar", "odd/d/b.tar"):
        s3.put_object(Bucket="shards", Key=key, Body=body)
    wanted = digests(TarDataset(str(local / "t-000.tar")))
    for url in ("s3://shards/odd/", "s3://shards/odd/a[[]x][*].tar"):
        assert digests(TarDataset(url)) == wanted
    with pytest.raises(ValueError, match=r"without \., \.\. and //"):
        TarDataset("s3://shards/odd//d/b.tar")
    s3.put_object(Bucket="shards", Key="twice/d//e.tar", Body=body)
    with pytest.raises(ValueError, match=r"s3://shards/twice/d//e\.tar' is malformed"):
        TarDataset("s3://shards/twice/**/*.tar")


def test_local_files_and_urls_may_be_mixed(local):
    mixed = TarDataset([str(local / "t-000.tar"), "s3://shards/train/t-001.tar"])
    assert digests(mixed) == digests(TarDataset(local))
    assert not stored_ranges(mixed, 0)
    assert len(stored_ranges(mixed, 19)) == 2


def with_clients(sample):
    """Return a sample's key and the clients that this process has."""
    return sample["__key__"], sorted(files._process()._stores)


def clients_of(batch):
    return [with_clients(sample) for sample in batch]


@needs_obstore
@pytest.mark.parametrize("options", [{}, {"balance": FIXED}])
def test_workers_read_by_obstore_and_their_parent_does_not(local, options):
    stored = TarDataset("s3://shards/train")
    loader = counterpoise.DataLoader(
        stored, batch_size=4, shuffle=True, num_workers=2, collate_fn=clients_of, **options
    )
    found = [each for batch in loader for each in batch]
    assert sorted(key for key, _ in found) == sorted(stored.key(n) for n in range(20))
    assert {tuple(clients) for _, clients in found} == {("obstore",)}
    assert sorted(files._process()._stores) == ["s3"]


def test_samples_of_a_mixture_and_of_views_are_expected_too(local):
    stored: Any = TarDataset("s3://shards/train")
    rows = MixtureRows([stored], Recipe(("a",), (20,), ((0, np.ones(1)),), 20, ()))
    for view in (
        Subset(stored, [5, 6]),
        ConcatDataset([stored, stored]),
        PlainSource(stored),
        rows,
    ):
        assert reads_stores(view)
        assert stored_ranges(view, 0)[0][0].url == "s3://shards/train/t-000.tar"


def failing(capsys, *arguments):
    """Return what a command prints on standard error as it fails with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    text = capsys.readouterr().err
    return " ".join(line for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("command", ["analyze", "doctor"])
def test_what_cannot_be_read_is_one_line(
    s3, local, endpoint, capsys, monkeypatch, tmp_path, command
):
    monkeypatch.chdir(tmp_path)
    for url, why in (
        ("s3://shards/none.tar", "no such object"),
        ("s3://no-such-bucket/train/a.tar", "no such bucket"),
        ("s3://shards/none/", "no such object|no object"),
    ):
        text = failing(capsys, command, url)
        assert any(part in text for part in why.split("|"))
        assert text.count("counterpoise:") == 1
        assert len(text) < 300
    call(endpoint, "reset-auth", b"0")
    try:
        begin_anew()
        text = failing(capsys, command, "s3://shards/train/t-000.tar")
    finally:
        call(endpoint, "reset-auth", b"Infinity")
    assert "check the credentials in the environment (AWS_ACCESS_KEY_ID" in text
    assert SECRET not in text
    assert "an-access-key-id" not in text
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    begin_anew()
    assert "check the credentials" in failing(capsys, command, "s3://shards/train/t-000.tar")


def ran(capsys, *arguments):
    """Return what a command prints as JSON."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    assert not ended.value.code
    return json.loads(capsys.readouterr().out)


def test_analyze_gives_the_figures_of_the_tar(local, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reports = []
    for out, source in (("one", str(local)), ("two", "s3://shards/train/")):
        reports.append(ran(capsys, "analyze", source, "--out", out))
    assert reports[1]["inputs"] == ["s3://shards/train/"]
    differing = {name for name in reports[0] if reports[0][name] != reports[1][name]}
    assert differing <= {"inputs", "seconds"}


def test_shards_are_prepared_from_a_url(local, capsys, tmp_path):
    report = ran(capsys, "prepare", "s3://shards/train/", "--out", str(tmp_path / "out"))
    assert (report["samples"], report["source"]) == (20, "s3://shards/train/")
    assert digests(TarDataset(tmp_path / "out")) == digests(TarDataset(local))


def test_costs_of_shards_at_a_url_are_kept_before_a_run(local, capsys):
    transform = "counterpoise.workers:VisionLanguage"
    report = ran(capsys, "prepare", "s3://shards/train/", "--index-only", "--transform", transform)
    assert (report["costs_kept"], report["without_cost"]) == (20, 0)
    stored = TarDataset("s3://shards/train/", counterpoise.workers.VisionLanguage())
    assert all(stored.known(index) for index in range(20))


def test_the_doctor_names_the_samples_of_a_step(local, capsys, tmp_path):
    balance = counterpoise.Balance("fixed", samples_per_step=4, accumulate="auto")
    stored = TarDataset("s3://shards/train")
    made = counterpoise.DataLoader(
        stored, batch_size=4, shuffle=True, num_workers=0, collate_fn=list, balance=balance
    )
    step = next(step for step in made.steps() if step.number == 1)
    (tmp_path / "ledger.json").write_text(json.dumps(made.state_dict()))
    words = ("--step", "1", "--data", "s3://shards/train")
    found = ran(capsys, "doctor", str(tmp_path / "ledger.json"), *words)
    assert sorted(found["keys"]) == sorted(key for info in step.infos for key in info.keys)


def test_doctor_says_what_is_at_a_url(local, capsys):
    report = ran(capsys, "doctor", "s3://shards/train/")
    found = {each["name"]: each for each in report["findings"]}
    assert found["shards"]["found"].startswith("2 of ")


def test_no_secret_is_in_what_is_kept_or_logged(local, caplog, tmp_path):
    caplog.set_level(logging.DEBUG, logger="counterpoise")
    stored = TarDataset("s3://shards/train")
    loader = counterpoise.DataLoader(
        stored, batch_size=4, shuffle=True, num_workers=1, collate_fn=list, balance=FIXED
    )
    next(iter(loader))
    told = [stored.spec(), stored.fingerprint(), repr(stored.files), stored.pattern, caplog.text]
    told += [json.dumps(loader.state_dict(), default=str)]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert SECRET not in "\n".join(map(str, told))
    assert SECRET.encode() not in kept


def test_a_listing_needs_no_request_for_each_object(local):
    found = list_urls("s3://shards/train")
    assert [file.name for file in found] == ["t-000.tar", "t-001.tar"]
    assert found == [open_url(file.url) for file in found]


# What imports obstore here is last.


@pytest.mark.parametrize("is_last", [False, True])
def test_an_object_that_changes_is_an_error(s3, local, monkeypatch, is_last):
    monkeypatch.setattr(obstore_store, "_is_last", is_last)
    stored = TarDataset("s3://shards/train/t-000.tar")
    s3.upload_file(str(local / "t-001.tar"), "shards", "train/t-000.tar")
    with pytest.raises(DataChangedError, match=r"changed.*s3://shards/train/t-000\.tar"):
        stored[3]
    assert len(TarDataset("s3://shards/train/t-000.tar")) == 10


def _read_in_child(url, answers):
    file = open_url(url)
    answers.put((file.read_range(0, 10), sorted(files._process()._stores)))


@needs_obstore
def test_a_child_of_a_process_that_has_obstore_does_without(local, monkeypatch):
    monkeypatch.setattr(obstore_store, "_is_last", True)
    open_url("s3://shards/train/t-000.tar").read_range(0, 10)
    assert "obstore" in files._process()._stores
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    url = "s3://shards/train/t-000.tar"
    child = context.Process(target=_read_in_child, args=(url, answers), daemon=True)
    child.start()
    data, clients = answers.get(timeout=60)
    child.kill()
    assert data == (local / "t-000.tar").read_bytes()[:10]
    assert clients == ["s3"]
