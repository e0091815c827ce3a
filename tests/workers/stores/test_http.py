"""Shards behind an http server with faults: the samples of local files, or one clear line."""

import json
import logging
import pickle
import socket
from collections import Counter
from typing import Any

import pytest

import counterpoise
from counterpoise.workers.sources.failures import DataChangedError, RepeatedReadError
from counterpoise.workers.sources.registry import open_source
from counterpoise.workers.stores import allowed, files, repeating
from counterpoise.workers.stores.allowed import restrict_urls
from counterpoise.workers.stores.files import expect_samples, open_url
from counterpoise.workers.stores.repeating import RefusedError
from counterpoise.workers.tar.dataset import TarDataset
from tests.held_port import held_port
from tests.workers.stores.servers import begin_anew, served

FIXED = counterpoise.Balance("fixed")
# A stalled answer is waited for so long; under load a good one may seem to be stalled, too.
OPTIONS = "timeout=0.25,tries=20"
SIGNATURE = "?X-Amz-Signature=hunter2"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COUNTERPOISE_STORE", OPTIONS)
    monkeypatch.setattr(repeating, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(allowed, "_prefixes", None)


@pytest.fixture
def held(shard, picture):
    """Three shards of 12 samples: a JSON and an image, of which some are large."""
    for number in range(3):
        members = dict[str, object]()
        for sample in range(12):
            key = f"{number}-{sample:02}"
            members[f"{key}.json"] = {"caption": key, "source": "web"}
            width = 400 if sample == 5 else 24
            members[f"{key}.png"] = picture(width, width, seed=100 * number + sample)
        shard(f"t-{number:03}.tar", members)
    folder = shard("t-000.txt", {}).parent
    return folder, {path.name: path.read_bytes() for path in sorted(folder.glob("*.tar"))}


def digests(dataset):
    return [pickle.dumps(dataset[index]) for index in range(len(dataset))]


def by_loader(dataset, **options):
    batches = counterpoise.DataLoader(dataset, batch_size=4, collate_fn=list, **options)
    found = [sample for batch in batches for sample in batch]
    return sorted(pickle.dumps(sample) for sample in found)


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_faults_change_no_sample(held, seed):
    folder, files_held = held
    local = TarDataset(folder)
    faults = {"fail": 0.05, "stall": 0.05, "truncate": 0.01}
    with served(files_held, seed=seed, **faults) as (url, server):
        stored = TarDataset(f"{url}/t-{{000..002}}.tar")
        assert stored.data_digest() == local.data_digest()
        assert digests(stored) == digests(local)
        probes = [stored.probe(index) for index in range(len(stored))]
        assert probes == [local.probe(index) for index in range(len(local))]
        assert Counter(status for *_, status in server.asked)[206] > 3


@pytest.mark.parametrize("options", [{}, {"balance": FIXED}])
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_deliver_what_is_local(held, options, workers):
    folder, files_held = held
    with served(files_held, fail=0.05, truncate=0.01) as (url, _):
        stored = TarDataset(f"{url}/t-{{000..002}}.tar")
        found = by_loader(stored, shuffle=True, num_workers=workers, **options)
        assert found == sorted(digests(TarDataset(folder)))


def test_the_samples_of_a_batch_are_asked_for_at_the_same_time(held):
    _, files_held = held
    with served(files_held) as (url, server):
        stored = TarDataset(f"{url}/t-{{000..002}}.tar")
        before = len(server.asked)
        keys = [sample["__key__"] for sample in by_batches(stored)]
        assert len(keys) == len(stored)
        # neighbours are one request, which is why there are fewer than samples, and than members
        assert len(server.asked) - before <= 9


def by_batches(dataset):
    loader = counterpoise.DataLoader(dataset, batch_size=12, collate_fn=list)
    return [sample for batch in loader for sample in batch]


def test_an_index_is_made_once_of_headers(held):
    _, files_held = held
    with served(files_held) as (url, server):
        TarDataset(f"{url}/t-000.tar")
        first = len(server.asked)
        server.asked.clear()
        TarDataset(f"{url}/t-000.tar")
    assert len(server.asked) == 1 < first


def test_large_members_are_passed_over_when_headers_are_read(shard):
    path = shard("large.tar", {f"{n}.bin": bytes(1_000_000) for n in range(10)})
    with served({"large.tar": path.read_bytes()}) as (url, server):
        stored = TarDataset(f"{url}/large.tar")
        assert len(stored) == 10
        assert TarDataset(path).data_digest() == stored.data_digest()
    spans = [span.removeprefix("bytes=").split("-") for _, span, _ in server.asked if span]
    read = sum(int(end) - int(start) + 1 for start, end in spans)
    assert read < 1_000_000


def test_a_kept_index_beside_the_shard_is_taken_if_it_is_of_this_shard(held, tmp_path, monkeypatch):
    folder, files_held = held
    monkeypatch.delenv("COUNTERPOISE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    local = TarDataset(folder)
    kept = {path.name: path.read_bytes() for path in folder.glob("*.index.npz")}
    assert len(kept) == 3
    kept["t-001.tar.index.npz"] = kept["t-000.tar.index.npz"]
    kept["t-002.tar.index.npz"] = b"PK"
    with served(files_held | kept) as (url, server):
        stored = TarDataset(f"{url}/t-{{000..002}}.tar")
        assert stored.data_digest() == local.data_digest()
        assert digests(stored) == digests(local)
        assert [name for name, *_ in server.asked].count("t-000.tar.index.npz") == 2


def test_an_object_that_changes_is_an_error_that_names_it(held, monkeypatch):
    _, files_held = held
    # The worker that is left reads no more when its server has gone.
    monkeypatch.setenv("COUNTERPOISE_STORE", "tries=1")
    with served(files_held) as (url, server):
        stored = TarDataset(f"{url}/t-000.tar")
        begin_anew()
        server.held["t-000.tar"] = server.held["t-001.tar"]
        with pytest.raises(DataChangedError, match=r"it changed after.*t-000\.tar"):
            digests(stored)
        loader = counterpoise.DataLoader(stored, batch_size=2, num_workers=1, collate_fn=list)
        batches: Any = iter(loader)
        with pytest.raises(OSError, match=r"t-000\.tar"):
            next(batches)
        batches._shutdown_workers()  # while it has a server: the error above holds it


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    assert "hunter2" not in text
    assert "secret" not in text
    return text


def test_a_server_without_ranges_is_refused_in_one_line(held):
    with served(held[1], ranges=False) as (url, server):
        with pytest.raises(RefusedError, match="answers no range requests") as error:
            TarDataset(f"{url}/t-000.tar{SIGNATURE}")
        assert "t-000.tar" in one_line(error)
        assert len(server.asked) == 1


def test_a_server_that_always_fails_is_given_up_with_its_last_answer(held, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_STORE", "tries=2")
    with served(held[1]) as (url, server):
        stored = TarDataset(f"{url}/t-000.tar{SIGNATURE}")
        loader = counterpoise.DataLoader(
            stored, batch_size=2, shuffle=True, collate_fn=list, on_error="skip", balance=FIXED
        )
        server.faults = {"fail": 1.0}
        with pytest.raises(RepeatedReadError, match=r"http status 503 \(tried 2 times\)") as error:
            stored[0]
        one_line(error)
        before = len(server.asked)
        with pytest.raises(Exception, match="503") as failed:
            list(loader)
        # the loader does not repeat what was repeated
        assert len(server.asked) - before < 20
        one_line(failed)


@pytest.mark.parametrize(
    ("name", "kind"), [("missing.tar", FileNotFoundError), ("t-00{0..3}.tar", FileNotFoundError)]
)
def test_what_is_missing_is_one_line(held, name, kind):
    with served(held[1]) as (url, _):
        with pytest.raises(kind, match=r"no such object") as error:
            TarDataset(f"{url}/{name}")
        one_line(error)


def test_a_host_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_STORE", "tries=2")
    begin_anew()
    refused = pytest.raises(RepeatedReadError, match="Connection refused")
    with held_port() as port, refused as error:
        open_url(f"http://127.0.0.1:{port}/a.tar{SIGNATURE}")
    one_line(error)


def test_http_lists_nothing(held):
    with served(held[1]) as (url, _), pytest.raises(RefusedError, match="lists nothing"):
        TarDataset(f"{url}/")


def test_a_signature_is_in_no_output(held, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    folder, files_held = held
    with served(files_held, fail=0.1) as (url, _):
        stored = TarDataset(f"{url}/t-000.tar{SIGNATURE}")
        assert digests(stored) == digests(TarDataset(folder / "t-000.tar"))
        loader = counterpoise.DataLoader(
            stored, batch_size=4, shuffle=True, collate_fn=list, balance=FIXED
        )
        next(iter(loader))
        told = [stored.pattern, stored.locate_file(0), stored.fingerprint(), repr(stored.files)]
        told += [json.dumps(loader.state_dict(), default=str), caplog.text]
        with pytest.raises(ValueError, match="signed") as error:
            stored.spec()
        kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        names = [str(path) for path in tmp_path.rglob("*")]
    assert "hunter2" not in "\n".join(map(str, [*told, *names, error.value]))
    assert not [each for each in kept if b"hunter2" in each]


def spec(url):
    return {"source": "tar", "pattern": [url], "transform": None}


def test_a_worker_reads_urls_below_what_its_operator_allows(held, tmp_path):
    with served(held[1]) as (url, server):
        with pytest.raises(ValueError, match="no path below the root"):
            open_source(spec(f"{url}/t-000.tar"), tmp_path)
        restrict_urls([])
        with pytest.raises(ValueError, match="--allow-url"):
            open_source(spec(f"{url}/t-000.tar"), tmp_path)
        restrict_urls([f"{url}/other"])
        with pytest.raises(ValueError, match="--allow-url"):
            open_source(spec(f"{url}/t-000.tar"), tmp_path)
        assert not server.asked
        restrict_urls([url])
        source = open_source(spec(f"{url}/t-000.tar"), tmp_path)
        assert len(source) == 12
        assert source.load(3, 0, 0)["__key__"] == "0-03"


def test_a_redirect_is_followed_where_its_target_is_allowed_too(held):
    with served(held[1]) as (other, _), served({}) as (url, server):
        for name, target in (("a.tar", f"{other}/t-000.tar"), ("b.tar", "ftp://h/a.tar")):
            server.redirects[name] = target
        server.redirects |= {"round.tar": "/round.tar", "meta.tar": "http://169.254.169.254/a"}
        assert len(TarDataset(f"{url}/a.tar")) == 12
        for name, why in (
            ("b.tar", "it redirects"),
            ("round.tar", "redirects"),
            ("meta.tar", "metadata"),
        ):
            with pytest.raises(RefusedError, match=why):
                open_url(f"{url}/{name}")
        restrict_urls([url])
        with pytest.raises(RefusedError, match="--allow-url"):
            open_url(f"{url}/a.tar")


def test_a_name_that_leads_to_a_private_address_is_refused(held, monkeypatch):
    with served(held[1]) as (url, server):
        port = int(url.rpartition(":")[2])
        known = socket.getaddrinfo

        def lookup(host, *rest):
            return known("127.0.0.1" if host == "public.example" else host, *rest)

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
        restrict_urls([f"http://public.example:{port}/"])
        with pytest.raises(RefusedError, match="private address"):
            open_url(f"http://public.example:{port}/t-000.tar")
        assert not server.asked


def test_memory_stays_within_the_bound(held, monkeypatch):
    monkeypatch.setenv("COUNTERPOISE_STORE", "ahead=30KB,requests=3")
    with served(held[1]) as (url, server):
        stored = TarDataset(f"{url}/t-{{000..002}}.tar")
        ahead = files._process().ahead
        small = [index for index in range(len(stored)) if index % 12 != 5]
        expect_samples(stored, ((index, False) for index in small))
        for index in small:
            assert ahead._held <= 30_000
            stored[index]
        assert server.most_running <= 4


def test_a_file_is_read_by_anybody(held):
    with served(held[1]) as (url, _):
        file = open_url(f"{url}/t-000.tar")
        data = held[1]["t-000.tar"]
        assert (file.size, file.name, str(file)) == (len(data), "t-000.tar", f"{url}/t-000.tar")
        assert file.read_range(512, 1000) == data[512:1512]
        assert file.read_range(0, file.size) == data
        assert file.read_range(5, 0) == b""
        assert pickle.loads(pickle.dumps(file)) == file
        with pytest.raises(DataChangedError):
            file.read_range(0, file.size + 1)
