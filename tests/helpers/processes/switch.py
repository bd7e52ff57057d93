"""Main program of a network switch between the hosts of ``network.py``: delays frames, limits rates, and drops what is blocked.

It moves whole frames between network interfaces, one for each host, so it needs no modules of the kernel (netem, filters).
``python -P switch.py host0 host1``, then one JSON object with changes per line of stdin, each answered by a line. It ends with
stdin.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import select
import socket
import struct
import sys
import time
from typing import Any

ALL_PROTOCOLS, IPV4, TCP = 0x0003, 0x0800, 6
SOL_PACKET, IGNORE_OUTGOING, WITH_OFFLOADS = 263, 23, 15
"""Options of packet sockets that Python has no names for. With offloads frames are up to 64 KiB long and need no checksums."""

HEADER = 10
"""Bytes before each frame, which describe its offloads."""

QUEUE = 2**24
"""Bytes that wait at a port; more are dropped, as in a real switch."""


class Port:
    """Interface to one host. Its settings hold for frames that come from there."""

    def __init__(self, name: str) -> None:
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        for option in (WITH_OFFLOADS, IGNORE_OUTGOING):
            self.socket.setsockopt(SOL_PACKET, option, 1)
        self.socket.bind((name, 0))
        self.socket.setblocking(False)
        self.delay, self.rate, self.is_cut = 0.0, float("inf"), False
        self.waiting, self.free = 0, 0.0
        """Bytes in the queue, and when the line has sent them all."""


class Switch:
    """Learns behind which port each address is, and sends frames there when they are due."""

    def __init__(self, names: list[str]) -> None:
        self.ports = [Port(name) for name in names]
        self.places, self.blocked = dict[bytes, Port](), set[tuple[str, str, int]]()
        self.queue, self.count = list[tuple[float, int, Port, bytes]](), 0

    def change(self, port: int | None = None, blocked: Any = None, **settings: Any) -> None:
        """Set ``delay`` in seconds, ``rate`` in bytes per second or ``is_cut`` of one port, or of all.

        ``blocked`` is a list of (source address, target address, port), whose TCP packets are dropped in this direction.
        """
        for each in self.ports if port is None else [self.ports[port]]:
            vars(each).update(settings)
        if blocked is not None:
            self.blocked = {(source, target, number) for source, target, number in blocked}

    def take(self, port: Port) -> None:
        """Read the frames that have arrived at a port."""
        with contextlib.suppress(BlockingIOError):
            while True:
                frame = port.socket.recv(2**17)
                self.places[frame[HEADER + 6 : HEADER + 12]] = port
                if port.is_cut or port.waiting > QUEUE or (self.blocked and self.is_blocked(frame[HEADER:])):
                    continue
                port.waiting += len(frame)
                port.free = max(port.free, time.monotonic()) + len(frame) / port.rate
                heapq.heappush(self.queue, (port.free + port.delay, self.count, port, frame))
                self.count += 1

    def is_blocked(self, frame: bytes) -> bool:
        if struct.unpack_from("!H", frame, 12) != (IPV4,) or frame[23] != TCP:
            return False
        (port,) = struct.unpack_from("!H", frame, 14 + 4 * (frame[14] & 15) + 2)
        return (socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]), port) in self.blocked

    def send(self) -> float | None:
        """Send what is due. Return the seconds until something else is."""
        while self.queue and (left := self.queue[0][0] - time.monotonic()) <= 0:
            _, _, origin, frame = heapq.heappop(self.queue)
            origin.waiting -= len(frame)
            known = self.places.get(frame[HEADER : HEADER + 6])
            for port in [known] if known else [port for port in self.ports if port is not origin]:
                if not port.is_cut:
                    with contextlib.suppress(OSError):  # its buffer is full, or the host is gone
                        port.socket.send(frame)
        return left if self.queue else None


def main(names: list[str]) -> None:
    switch = Switch(names)
    sockets = {port.socket: port for port in switch.ports}
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([sys.stdin, *sockets], [], [], switch.send())
        for each in ready:
            if each is not sys.stdin:
                switch.take(sockets[each])
            elif line := sys.stdin.readline():
                switch.change(**json.loads(line))
                print("changed", flush=True)
            else:
                return


if __name__ == "__main__":
    main(sys.argv[1:])
