"""What is a URL, what is shown of it, and which ones may be read by a worker for others."""

import pytest

from counterpoise.workers.sources.urls import SCHEMES, checked_url, is_url, shown
from counterpoise.workers.stores import allowed
from counterpoise.workers.stores.allowed import check_address, check_allowed, restrict_urls
from counterpoise.workers.stores.options import StoreOptions
from counterpoise.workers.stores.repeating import NoAnswerError, RefusedError, check_size

SECRETS = ("hunter2", "AKIA", "Signature", "tok3n")


@pytest.fixture
def restricted(monkeypatch):
    monkeypatch.setattr(allowed, "_prefixes", None)
    return restrict_urls


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_url_of_each_store_is_one(scheme):
    assert is_url(f"{scheme}://place/a.tar")
    assert checked_url(f"{scheme}://place/a.tar")


@pytest.mark.parametrize("text", ["a.tar", "/data/a.tar", "C:/a.tar", "a:b", "", "~/a", "s3:/b/a"])
def test_a_path_is_none(text):
    assert not is_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "https://me:hunter2@host/a.tar",
        "https://AKIA@host/a.tar",
        "s3://AKIA:hunter2@bucket/a.tar",
        "http://host/a.tar?X-Amz-Signature=hunter2&X-Amz-Credential=AKIA",
        "https://host/a.tar#tok3n",
        "ftp://me:hunter2@host/a.tar",
        "az://AKIA:hunter2@account/a.tar",
    ],
)
def test_no_secret_is_shown(text):
    told = shown(text)
    try:
        checked_url(text)
    except ValueError as error:
        told += str(error)
    assert not [secret for secret in SECRETS if secret in told]


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/../other/a.tar", "s3://bucket/a/./b.tar", "s3://bucket//a.tar",
        "s3://bucket/a//b.tar", "gs://bucket/a//", "https://host/%2e%2e/a.tar", "s3:///a.tar",
        "s3://-bucket/a.tar", "http://ho st/a.tar", "http://host\n/a.tar", "http://host/a\x00.tar",
        "simplecache::s3://bucket/a.tar", "file:///etc/passwd", "memory://a.tar", "pipe:cat a.tar",
        "https://host:123456/a.tar", "https://host/" + "a" * 9000,
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_short_line(text):
    with pytest.raises(ValueError, match=r"is malformed|is no local path") as found:
        checked_url(text)
    assert len(str(found.value)) < 500
    assert str(found.value).isprintable()


def test_a_user_s_own_process_reads_any_url(restricted):
    check_allowed("s3://any/a.tar")
    check_address("host", "10.0.0.1")


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("s3://bucket/train/a.tar", True), ("s3://bucket/train", True),
        ("s3://bucket/training/a.tar", False), ("s3://bucket/a.tar", False),
        ("s3://bucket2/train/a.tar", False), ("gs://bucket/train/a.tar", False),
        ("https://host/a.tar", True), ("https://host.evil.org/a.tar", False),
        ("https://host:8443/a.tar", False), ("http://host/a.tar", False),
    ],
)  # fmt: skip
def test_a_worker_reads_below_its_prefixes(restricted, url, good):
    restricted(["s3://bucket/train", "https://host/"])
    if good:
        check_allowed(url)
    else:
        with pytest.raises(ValueError, match="--allow-url"):
            check_allowed(url)


METADATA = [
    "169.254.169.254", "169.254.170.2", "fe80::1", "fd00:ec2::254", "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "100.100.100.200",
]  # fmt: skip


@pytest.mark.parametrize("address", METADATA)
@pytest.mark.parametrize("prefixes", [None, ["http://169.254.169.254/", "http://host/"]])
def test_nobody_connects_to_a_metadata_service(restricted, address, prefixes):
    if prefixes:
        restricted(prefixes)
    with pytest.raises(RefusedError, match="metadata service"):
        check_address("host", address)


def test_nobody_reads_a_metadata_service_by_name(restricted):
    restricted(["http://metadata.google.internal/"])
    with pytest.raises(ValueError, match="metadata service"):
        check_allowed("http://metadata.google.internal/computeMetadata/v1/")


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "127.0.0.1", "192.168.1.2", "172.16.0.1", "::1", "fc00::1", "0.0.0.0"]
)
def test_a_private_address_must_be_named(restricted, address):
    restricted(["https://host/"])
    with pytest.raises(RefusedError, match="private address"):
        check_address("host", address)
    restricted([f"http://[{address}]/" if ":" in address else f"http://{address}:9000/"])
    check_address("host", address)


def test_options_come_from_the_environment():
    assert StoreOptions.parse("ahead=1.5GB, requests=4 timeout=0.5").ahead == 1_500_000_000
    for wrong in ("ahead", "ahead=x", "cache=1GB", "requests=0", "timeout=0", "ahead=-1"):
        with pytest.raises(ValueError, match="COUNTERPOISE_STORE"):
            StoreOptions.parse(wrong)


def test_a_store_that_ignores_ranges_is_refused_at_once():
    check_size(b"abc", 3)
    with pytest.raises(NoAnswerError, match="it sent 2 bytes of 3"):
        check_size(b"ab", 3)
    with pytest.raises(RefusedError, match="answers no range requests"):
        check_size(b"abcd", 3)
