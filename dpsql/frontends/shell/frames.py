"""Frames between extension and helper: a letter, a size, a body. ``udfs/native/helper.c`` says which there are."""

from __future__ import annotations

import socket
import struct

PROTOCOL = 1

_HEAD = struct.Struct("<cI")
_SIZE = struct.Struct("<I")


class Channel:
    """One end of the pair of sockets."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._incoming = connected.makefile("rb")

    def send(self, kind: str, body: bytes = b"") -> None:
        """Send one frame."""
        self._socket.sendall(_HEAD.pack(kind.encode(), len(body)) + body)

    def receive(self) -> tuple[str, bytes]:
        """The next frame.

        Raises:
            EOFError: the other end is gone.

        """
        kind, size = _HEAD.unpack(self._exactly(_HEAD.size))
        return kind.decode(), self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        received = self._incoming.read(size)
        if len(received) < size:
            raise EOFError
        return received


class BodyReader:
    """What a body says, from the front."""

    def __init__(self, body: bytes) -> None:
        self._body = memoryview(body)

    def raw(self, size: int) -> memoryview:
        """Bytes as they are.

        Raises:
            ValueError: there are fewer.

        """
        if size > len(self._body):
            raise ValueError("a frame ends early")
        taken, self._body = self._body[:size], self._body[size:]
        return taken

    def letter(self) -> str:
        """One letter."""
        return bytes(self.raw(1)).decode()

    def byte(self) -> int:
        """A number below 256."""
        return self.raw(1)[0]

    def number(self) -> int:
        """A number below 2**32."""
        return int(_SIZE.unpack(self.raw(_SIZE.size))[0])

    def text(self) -> str:
        """A text, with its size before it."""
        return bytes(self.raw(self.number())).decode()


def number(value: int) -> bytes:
    """A number below 2**32."""
    return _SIZE.pack(value)


def text(value: str) -> bytes:
    """A text, with its size before it."""
    encoded = value.encode()
    return number(len(encoded)) + encoded
