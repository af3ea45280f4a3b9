# SPDX-License-Identifier: Apache-2.0
"""Networks of an ordinary user: in namespaces of that user's own, in which the user is root.

One set of namespaces (user, mount, network) holds all networks of a user. The first command that needs them
makes them, later ones find them at any process that is inside and join (setns(2)), and they go with the last
process inside: with the last command and the last network. So nothing has to be recorded, and nothing can be
left behind. Inside, /run is the machine's but for what is p4reduce's, and /sys tells of the namespace's
interfaces. `python -m topologies.rootless CMD...` runs a command inside.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topologies.errors import RootlessError
from wire.constants import RUN_ROOT
from wire.native import cache_folder

MARK = RUN_ROOT / ".rootless"
"""Is there inside, and tells such namespaces from others of the same user."""
KINDS = ("user", "mnt", "net")
"""In the order of joining: as the first is entered, the user may enter the others."""
NOT_OURS = ("p4reduce", "netns")
"""What of the machine's /run is not shown inside: root's networks, and where ip(8) keeps namespaces."""
TURN_LIMIT_S = 10.0

_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWNET = 0x00020000, 0x10000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
_NS_GET_PARENT = 0xB702
"""ioctl_ns(2)"""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1

Namespaces = dict[str, int]
"""Open descriptors by kind."""


def inside() -> bool:
    """Say whether this process is in an ordinary user's namespaces."""
    return os.geteuid() == 0 and MARK.exists()


def enter(*, make: bool) -> bool:
    """Join the namespaces of this process's user; return whether there are some.

    Where there are none they are made, if `make`. Root stays where it is (False). The process may have one
    thread alone. RootlessError, which leaves the process where it was, when the kernel refuses.
    """
    if os.geteuid() == 0:
        return False
    found = _find()
    if found is None and make:
        with _turn():
            found = _find()
            if found is None:
                _make(_join)
                return True
    if found is None:
        return False
    try:
        _join(found)
    finally:
        _close(found)
    return True


def refusal() -> str | None:
    """Say why an ordinary user can have no such namespaces here, with the remedy; None if all is well."""
    try:
        _make(lambda found: None)
    except RootlessError as error:
        return str(error)
    return None


# ---- finding and joining
def _find() -> Namespaces | None:
    """Return the namespaces of a process that is inside; None when there is none."""
    user, ours = os.geteuid(), os.stat("/proc/self/ns/user").st_ino
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # Nobody but the user has processes in the user's namespaces, so no one else can pretend.
            if entry.stat().st_uid != user or (entry / "ns/user").stat().st_ino == ours:
                continue
            mark = Path(f"{entry}/root{MARK}")
            if not mark.exists():
                continue
            found = _open(int(entry.name))
        except OSError:
            continue  # it has ended since, or is not to be looked at
        if _parent(found["user"]) == ours and mark.exists():
            return found
        _close(found)
    return None


def _open(pid: int) -> Namespaces:
    found: Namespaces = {}
    try:
        for kind in KINDS:
            found[kind] = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
    except BaseException:
        _close(found)
        raise
    return found


def _close(found: Namespaces) -> None:
    for descriptor in found.values():
        os.close(descriptor)


def _parent(namespace: int) -> int | None:
    """Return the inode of the user namespace in which this one was made; None where it may not be known."""
    try:
        parent = fcntl.ioctl(namespace, _NS_GET_PARENT)
    except OSError:
        return None
    try:
        return os.fstat(parent).st_ino
    finally:
        os.close(parent)


def _join(found: Namespaces) -> None:
    folder = None
    with suppress(FileNotFoundError):
        folder = os.getcwd()
    for kind in KINDS:
        _call("setns", found[kind], 0)
    if folder is not None:
        # Joining a mount namespace leads to its root.
        with suppress(OSError):
            os.chdir(folder)


@contextmanager
def _turn() -> Iterator[None]:
    """Let one process at a time make namespaces: a user has one set."""
    lock = os.open(cache_folder() / "rootless.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + TURN_LIMIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RootlessError(
                        f"another command has been making this user's namespaces for {TURN_LIMIT_S:g} s: "
                        "end it, and try again"
                    ) from None
            time.sleep(0.01)
        yield
    finally:
        os.close(lock)


# ---- making
def _make(use: Callable[[Namespaces], None]) -> None:
    """Make namespaces and `use` them; a child makes them, so that a refusal leaves this process as it was."""
    said, saying = os.pipe()
    waiting, done = os.pipe()
    uid, gid = os.geteuid(), os.getegid()
    child = os.fork()
    if child == 0:
        try:
            os.close(done)
            try:
                _build(uid, gid)
                os.write(saying, b"+")
            except OSError as error:
                os.write(saying, f"{error.filename}: {error.strerror}".encode())
            os.close(saying)
            os.read(waiting, 1)
        finally:
            os._exit(0)
    try:
        os.close(saying)
        os.close(waiting)
        with os.fdopen(said, "rb") as pipe:
            answer = pipe.read().decode()
        if answer != "+":
            raise RootlessError(_why(answer or "the process that tried was ended"))
        found = _open(child)
        try:
            use(found)
        finally:
            _close(found)
    finally:
        os.close(done)
        os.waitpid(child, 0)


def _build(uid: int, gid: int) -> None:
    """Enter new namespaces in which user and group are root's. OSError names as its file what was refused."""
    _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNS | _CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)
    # What is mounted outside later is seen here, what is mounted here is not seen there.
    _mount("none", "/", None, _MS_REC | _MS_SLAVE)
    _mount_sys()
    _mount_run()
    _loopback_up()
    RUN_ROOT.mkdir(mode=0o755, parents=True)
    MARK.touch(mode=0o600)


def _mount_sys() -> None:
    """Show the interfaces of the new namespace below /sys/class/net, and the cgroups as before."""
    groups = os.open("/sys/fs/cgroup", os.O_PATH) if Path("/sys/fs/cgroup").exists() else None
    _mount("sysfs", "/sys", "sysfs", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    if groups is not None:
        with suppress(OSError):
            _mount(f"/proc/self/fd/{groups}", "/sys/fs/cgroup", None, _MS_BIND | _MS_REC)
        os.close(groups)


def _mount_run() -> None:
    """Make a /run where we may write, with all that is in the machine's but NOT_OURS."""
    old = os.open("/run", os.O_RDONLY | os.O_DIRECTORY)
    _mount("tmpfs", "/run", "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755")
    for name in os.listdir(old):
        if name in NOT_OURS:
            continue
        new = Path("/run", name)
        with suppress(OSError):  # what cannot be shown is missing there
            mode = os.stat(name, dir_fd=old, follow_symlinks=False).st_mode
            if stat.S_ISLNK(mode):
                new.symlink_to(os.readlink(name, dir_fd=old))
                continue
            if stat.S_ISDIR(mode):
                new.mkdir()
            else:
                new.touch()
            _mount(f"/proc/self/fd/{old}/{name}", str(new), None, _MS_BIND | _MS_REC)
    os.close(old)


def _loopback_up() -> None:
    """Bring `lo` up: switches serve P4Runtime there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(sock, _SIOCGIFFLAGS, request))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _call(name: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library; OSError, with the name as its file, when it fails."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    try:
        words = (source.encode(), target.encode(), None if kind is None else kind.encode())
        _call("mount", *words, flags, data.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"mounting {kind or source} at {target}") from None


# ---- why not
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000", "allows none"),
    (
        "/proc/sys/kernel/unprivileged_userns_clone",
        "0",
        "kernel.unprivileged_userns_clone=1",
        "allows root alone to have them",
    ),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "kernel.apparmor_restrict_unprivileged_userns=0",
        "has AppArmor take their rights away, as Ubuntu does from 23.10 on",
    ),
)
"""File, the value that forbids, sysctl's remedy, what the kernel does."""


def _why(refused: str, switches: tuple[tuple[str, str, str, str], ...] = _SWITCHES) -> str:
    """Return the sentence about a refusal, with its remedy; `refused` is what the kernel said."""
    head = f"user namespaces are refused ({refused})"
    if not Path("/proc/self/ns/user").exists():
        return f"{head}: the kernel was built without them"
    for path, forbids, remedy, does in switches:
        with suppress(OSError):
            if Path(path).read_text().strip() == forbids:
                return f"{head}: the kernel {does}; to change that: sudo sysctl -w {remedy}"
    return f"{head}: where this is a container, start it with --privileged"


def main() -> int:
    """Run the command of sys.argv inside; root and who is inside run it as they are."""
    if len(sys.argv) < 2:
        print("usage: python -m topologies.rootless CMD...", file=sys.stderr)
        return 2
    try:
        enter(make=True)
        os.execvp(sys.argv[1], sys.argv[1:])
    except RootlessError as error:
        print(f"error: {error}", file=sys.stderr)
    except OSError as error:
        print(f"error: {sys.argv[1]}: {error.strerror}", file=sys.stderr)
    return 127


if __name__ == "__main__":
    sys.exit(main())
