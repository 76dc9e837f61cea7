"""A network namespace with only the loopback interface, for peers that listen on every address."""

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def _unshare(what: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(what) != 0:
        number = ctypes.get_errno()
        raise OSError(
            number, f"{os.strerror(number)}: no network namespace, and without one this peer would be open to others"
        )


def confine() -> None:
    """Moves this process, which must have one thread, and its future children. Fails without permission."""
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _unshare(CLONE_NEWNET)
    else:
        _unshare(CLONE_NEWUSER | CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))
