"""A network of its own for engines, on which the way of the data can become a black hole while control goes on."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
from typing import Self

# UCX lists the devices of the host, whatever the namespace, and takes the first address of the one that it is told:
# the only one that is in both is the loopback device.
DEVICE = "lo"
DATA_ADDRESS = "10.77.0.1"
# One end of a cable whose other end takes nothing, having another hardware address than what is sent there.
HOLE = "hole"
HOLE_TABLE = "77"
# The answer of the door to a port that refuses.
REFUSED = b"refused"

SETUP = (
    f"link set {DEVICE} up",
    f"addr flush dev {DEVICE}",
    f"addr add {DATA_ADDRESS}/32 scope host dev {DEVICE}",
    f"addr add 127.0.0.1/8 scope host dev {DEVICE}",
    f"link add {HOLE} type veth peer name bottom",
    f"link set {HOLE} up",
    "link set bottom up",
    f"route add default dev {HOLE} table {HOLE_TABLE}",
    f"neigh add {DATA_ADDRESS} lladdr 02:00:00:00:00:01 dev {HOLE} nud permanent",
    # The kernel's own rule, that this machine's addresses are reached at once, makes room for one before it.
    "rule add pref 100 lookup local",
    "rule del pref 0",
)
BLACK_HOLE = f"pref 50 to {DATA_ADDRESS} lookup {HOLE_TABLE}"


class NoNetwork(Exception):
    """A network cannot be made here; says why."""


class Network:
    """A network namespace with two ways between its processes: 127.0.0.1, and DATA_ADDRESS, which UCX takes.

    A context manager. Its processes are started with prefix(); who stands outside talks to them through connect().
    """

    def __init__(self) -> None:
        for tool in ("unshare", "nsenter", "ip"):
            if shutil.which(tool) is None:
                raise NoNetwork(f"{tool} is not installed")
        self._lock = threading.Lock()
        self._way_in, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = ["unshare", "--map-root-user", "--net", sys.executable, __file__, str(theirs.fileno())]
        self._door = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
        theirs.close()
        if self._way_in.recv(16) == b"":
            assert self._door.stderr is not None
            why = self._door.stderr.read().strip()
            self._close()
            raise NoNetwork(f"no network namespace: {why}")
        try:
            for step in SETUP:
                self._ip(step)
        except subprocess.CalledProcessError as error:
            self._close()
            raise NoNetwork(f"no network namespace: ip {step}: {error.stderr.strip()}") from error

    def prefix(self) -> list[str]:
        """Before a command that is to run on this network."""
        enter = ["nsenter", "--target", str(self._door.pid), "--user", "--net", "--preserve-credentials"]
        return [*enter, "env", f"UCX_NET_DEVICES={DEVICE}"]

    def connect(self, port: int) -> socket.socket:
        """Connected to this port of 127.0.0.1 on this network."""
        with self._lock:
            self._way_in.send(str(port).encode())
            answer, sockets, _, _ = socket.recv_fds(self._way_in, 16, 1)
        if answer == REFUSED:
            raise ConnectionRefusedError(f"port {port} of the network")
        return socket.socket(fileno=sockets[0])

    def lose_data(self) -> None:
        """From now on every packet to the data address vanishes, in both directions; connections stay."""
        self._ip(f"rule add {BLACK_HOLE}")

    def find_data(self) -> None:
        """Packets arrive again."""
        self._ip(f"rule del {BLACK_HOLE}")

    def _ip(self, words: str) -> None:
        subprocess.run([*self.prefix(), "ip", *words.split()], check=True, capture_output=True, text=True)

    def _close(self) -> None:
        self._way_in.close()
        self._door.wait()
        assert self._door.stderr is not None
        self._door.stderr.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


def keep_door(way_in: socket.socket) -> None:
    """Keeps the namespace that this process is in, and hands out connections within it: a socket stays where it was
    made, whoever uses it.
    """
    way_in.send(b"open")
    while port := way_in.recv(16):
        try:
            with socket.create_connection(("127.0.0.1", int(port))) as connection:
                socket.send_fds(way_in, [b"connected"], [connection.fileno()])
        except ConnectionRefusedError:
            way_in.send(REFUSED)


if __name__ == "__main__":
    keep_door(socket.socket(fileno=int(sys.argv[1])))
