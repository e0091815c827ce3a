"""Reads and writes key files: a party's own key, the balancer it trusts, the keys it allows.

Each party has a folder, made by `counterpoise keygen`:

    balancer/  secret.key    allowed/NAME.pub ...       the balancer's own key; allowed peers
    NAME/      secret.key    balancer.pub               a worker's or trainer's; its balancer

A file holds one line: the word counterpoise, the role, the key in ZeroMQ's Z85 text. Secret files
may be read by their owner only. A key is revoked by removing its file from `allowed`, which a
running balancer notices. A key in a folder of `allowed`, `allowed/JOB/NAME.pub`, is good for that
job only; its party's folder has a file `job` with the job's name.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from .naming import checked_job

ROLES = ("balancer", "worker", "trainer")
SECRET, BALANCER, ALLOWED, JOB = "secret.key", "balancer.pub", "allowed", "job"
KEY_CHARACTERS = 40
MAX_FILE_BYTES = 1024


class KeyPair(msgspec.Struct, frozen=True):
    """A party's role and key pair, as Z85 text."""

    role: str
    public: bytes
    secret: bytes

    def __repr__(self) -> str:
        """Leave the secret out: what is shown may be logged."""
        return f"KeyPair(role={self.role!r}, public={self.public!r})"


class ServerKeys(msgspec.Struct, frozen=True):
    """A balancer's own pair, and the folder of the public keys that it allows."""

    pair: KeyPair
    allowed: Path


class PeerKeys(msgspec.Struct, frozen=True):
    """A worker's or trainer's own pair, the balancer's public key, and the only job, if any."""

    pair: KeyPair
    balancer: bytes
    job: str = ""


def new_pair(role: str) -> KeyPair:
    """Return a new key pair."""
    public, secret = zmq.curve_keypair()
    return KeyPair(role, public, secret)


def server_keys(folder: Path) -> ServerKeys:
    """Read a balancer's folder; raise ValueError or OSError if something is wrong with it."""
    keys = ServerKeys(_own(folder, ("balancer",)), folder / ALLOWED)
    if not keys.allowed.is_dir():
        raise ValueError(
            f"{folder} has no folder {ALLOWED}/ of public keys: run counterpoise keygen"
        )
    for path in _public_files(keys.allowed):
        _read(path)
    return keys


def peer_keys(folder: Path, role: str) -> PeerKeys:
    """Read a worker's or trainer's folder; raise ValueError or OSError if it is not right."""
    pair, path = _own(folder, (role,)), folder / BALANCER
    whose, key = _read(path)
    if whose != "balancer":
        raise ValueError(f"{path} is a {whose}'s key: copy the balancer's public key there")
    job = folder / JOB
    return PeerKeys(pair, key, checked_job(job.read_text().strip()) if job.exists() else "")


def write_secret(folder: Path, pair: KeyPair) -> None:
    """Write a party's secret key, readable by its owner only; FileExistsError if there is one."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / SECRET
    path.touch(mode=0o600, exist_ok=False)
    path.write_text(_line(pair.role, pair.secret))


def write_public(path: Path, pair: KeyPair) -> None:
    """Write a public key; FileExistsError if the file is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o644, exist_ok=False)
    path.write_text(_line(pair.role, pair.public))


def write_keys(folder: Path, named: Mapping[str, str], job: str = "") -> None:
    """Write the keys of new peers, {name: role}, that the balancer there lets in, for `job` only.

    The balancer gets keys, too, if it has none. FileExistsError for a name that has some.
    """
    home = folder / "balancer"
    if not (home / SECRET).exists():
        write_secret(home, new_pair("balancer"))
        (home / ALLOWED).mkdir(exist_ok=True)
    server = server_keys(home)
    for name, role in named.items():
        pair = new_pair(role)
        write_secret(folder / name, pair)
        write_public(folder / name / BALANCER, server.pair)
        write_public(server.allowed / job / f"{name}.pub", pair)
        if job:
            (folder / name / JOB).write_text(job + "\n")


class AllowList:
    """The public keys in a folder, their roles and jobs, read again when a file changes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: tuple[object, ...] = ()
        self._roles: dict[bytes, tuple[str, str]] = {}

    def roles(self) -> dict[bytes, tuple[str, str]]:
        """Return {public key: (role, job)}, "" for any; an unreadable file allows none."""
        try:
            paths = _public_files(self._folder)
            states = [path.stat() for path in paths]
            seen = tuple(
                (str(path), state.st_mtime_ns, state.st_size, state.st_ino)
                for path, state in zip(paths, states, strict=True)
            )
            if seen != self._seen:
                self._roles = dict(self._readable(paths))
                self._seen = seen
        except OSError as error:
            _warn("no peer is allowed: %s", error)
            return {}
        return self._roles

    def _readable(self, paths: list[Path]) -> list[tuple[bytes, tuple[str, str]]]:
        roles: list[tuple[bytes, tuple[str, str]]] = []
        for path in paths:
            try:
                role, key = _read(path)
            except (OSError, ValueError) as error:
                _warn("a key is not allowed: %s", error)
            else:
                job = "" if path.parent == self._folder else path.parent.name
                roles.append((key, (role, job)))
        return roles


def _public_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.pub"), *folder.glob("*/*.pub")])


def public_text(raw: bytes) -> bytes:
    """Return the text form of a public key of 32 bytes."""
    return z85.encode(raw)


def _warn(text: str, error: Exception) -> None:
    import logging  # here: it would delay each start of an embedded balancer

    logging.getLogger(__name__).warning(text, error)


def _own(folder: Path, roles: tuple[str, ...]) -> KeyPair:
    path = folder / SECRET
    if not path.is_file():
        raise ValueError(f"{folder} has no {SECRET}: make keys with counterpoise keygen FOLDER")
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path} can be read by others: chmod 600 it, or make new keys")
    role, secret = _read(path)
    if role not in roles:
        raise ValueError(f"{path} is a {role}'s key: give the folder of a {roles[0]}'s key")
    return KeyPair(role, zmq.curve_public(secret), secret)


def _line(role: str, key: bytes) -> str:
    return f"counterpoise {role} {key.decode()}\n"


def _read(path: Path) -> tuple[str, bytes]:
    with path.open("rb") as file:
        words = file.read(MAX_FILE_BYTES).split()
    if len(words) == 3 and words[0] == b"counterpoise" and len(words[2]) == KEY_CHARACTERS:
        role = words[1].decode("ascii", "replace")
        if role in ROLES and _is_key(words[2]):
            return role, words[2]
    raise ValueError(f"{path} is not a key file: it must hold the line 'counterpoise ROLE KEY'")


def _is_key(text: bytes) -> bool:
    try:
        return len(z85.decode(text)) == KEY_CHARACTERS * 4 // 5
    except (KeyError, ValueError, OverflowError):
        return False
