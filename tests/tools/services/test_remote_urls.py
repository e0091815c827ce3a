"""A balancer, a worker and a trainer over shards in S3: the same samples, and no secret told."""

import logging
from pathlib import Path
from typing import Any

import pytest

import counterpoise as cp
from counterpoise.loader import LoaderError
from counterpoise.tools.demo.data import ensure_demo_data
from tests.tools.services.test_remote import SMALL, make, take
from tests.workers.stores.servers import SECRET, begin_anew, s3_environment

pytest.importorskip("s3fs")
boto3 = pytest.importorskip("boto3")
moto_server = pytest.importorskip("moto.server")

pytestmark = pytest.mark.slow
SECRETS = (SECRET, "an-access-key-id")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("urls")
    ensure_demo_data(made / "demo", samples=30, shards=2)
    (made / "root").mkdir()
    return made


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Any:
    """The shards as s3://shards/train/ and s3://shards/private/, for all processes from now on."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_environment(f"http://{host}:{port}").items():
            patch.setenv(name, value)
        patch.setenv("COUNTERPOISE_CACHE", str(folder / "cache"))
        begin_anew()
        client = boto3.client("s3")
        client.create_bucket(Bucket="shards")
        for path in (folder / "demo").rglob("*.tar"):
            for prefix in ("train", "private"):
                client.upload_file(str(path), "shards", f"{prefix}/{path.name}")
        yield client
    begin_anew()
    server.stop()


@pytest.fixture(scope="module")
def services(bucket: Any, folder: Path, processes: Any) -> tuple[str, list[Any]]:
    """The balancer's address, and the processes."""
    balancer = processes("balancer", "--listen", "tcp://127.0.0.1:0")
    found: str = balancer.wait_for("listening on").partition("listening on ")[2].partition(";")[0]
    words = ("--root", str(folder / "root"), "--allow-url", "s3://shards/train/")
    worker = processes("worker", found, *words)
    worker.wait_for("working for")
    return found, [balancer, worker]


def check_secrets(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text]


def test_a_worker_reads_urls_and_delivers_what_local_files_give(
    services: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="counterpoise")
    address, running = services
    shards = cp.TarDataset(
        str(folder / "demo" / "**" / "*.tar"), cp.workers.VisionLanguage(**SMALL)
    )
    expected = take(make(shards, timeout=0))
    stored = cp.TarDataset("s3://shards/train/", cp.workers.VisionLanguage(**SMALL))
    assert take(make(stored, balancer=address)) == expected
    described = make(cp.RemoteDataset("s3://shards/train/", arguments=SMALL), balancer=address)
    assert take(described) == expected
    check_secrets(caplog.text + str(described.state_dict()))
    check_secrets("".join(line for each in running for line in each.lines))
    for path in folder.rglob("*"):
        check_secrets(path.read_bytes().decode("latin-1") if path.is_file() else path.name)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://shards/private/", "'s3://shards/private/' may not be read .*--allow-url PREFIX"),
        ("http://169.254.169.254/latest/a.tar", "may not be read"),
        ("s3://shards/train/a.jsonl", "only tar shards are read by URL"),
        ("s3://shards/train/none.tar", "no such object"),
    ],
)
def test_what_was_not_allowed_is_refused_in_one_line(url: str, reason: str, services: Any) -> None:
    address, running = services
    loader = make(cp.RemoteDataset(url), balancer=address, budgets={})
    with pytest.raises(LoaderError, match=reason) as raised:
        list(loader.steps())
    loader.close()
    assert "\n" not in str(raised.value)
    check_secrets(str(raised.value) + "".join(line for each in running for line in each.lines))


@pytest.mark.parametrize(
    "url",
    [f"s3://{':'.join(SECRETS)}@shards/train/", f"https://host/a.tar?X-Amz-Signature={SECRET}"],
)
def test_no_worker_is_told_a_secret(url: str) -> None:
    with pytest.raises(ValueError, match="credentials") as raised:
        cp.RemoteDataset(url)
    check_secrets(str(raised.value))
