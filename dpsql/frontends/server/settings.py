"""What ``dpsql serve`` is told: where to listen, whom to answer, and how much of the machine a reader may use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpsql.errors import PolicyError
from dpsql.remote.transport import is_loopback


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port to listen on; port 0 takes a free one."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """Read HOST:PORT, with brackets around an IPv6 host.

        Raises:
            PolicyError: it is something else.

        """
        host, colon, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            colon = ""
        if not (host and colon and port.isascii() and port.isdecimal() and int(port) < 2**16):
            raise PolicyError(f"an address to listen on is HOST:PORT, as in 127.0.0.1:8642, and not {text!r}")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine can connect."""
        return is_loopback(self.host)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server answers.

    Attributes:
        workers: questions that are worked on at a time.
        at_once: of one analyst. With 1, no question of theirs is begun before the answer to the one before is shown, so
            that none of them can time another.
        waiting: questions of one analyst that are waiting or worked on; the next is answered 429. There is no such
            number for all analysts together: it would tell each of them of the others.
        timeout_seconds: most time until an answer, from when its turn comes; rounded up to one of the times, which is
            its deadline.
        first_answer_seconds: answers are shown this long after their turn came, or twice, four times, eight times as
            long; 0 shows them when they are there. See `times`.
        keep_seconds: how long an answer can be fetched.
        kept: how many answers of one analyst can be.
        kept_bytes: of answers of one analyst, the oldest are forgotten beyond this.
        body_bytes: largest request.
        statement_length: longest statement, in characters.
        body_seconds: within which the headers of a request have to be here, and then its body.
        grace_seconds: what is being worked on when the server is stopped has this long.
        ask_by_get: whether a GET may ask, and so charge.

    """

    workers: int = 4
    at_once: int = 1
    waiting: int = 16
    timeout_seconds: float = 300.0
    first_answer_seconds: float = 0.1
    keep_seconds: float = 600.0
    kept: int = 256
    kept_bytes: int = 2**28
    body_bytes: int = 2**20
    statement_length: int = 32_768
    body_seconds: float = 20.0
    grace_seconds: float = 10.0
    ask_by_get: bool = False

    def __post_init__(self) -> None:
        for name in ("workers", "at_once", "waiting"):
            if getattr(self, name) < 1:
                raise PolicyError(f"{name.replace('_', '-')} takes a number from 1 up")
        if not 0 < self.timeout_seconds < 1e6:
            raise PolicyError("timeout takes a positive number of seconds")
        if not 0 <= self.first_answer_seconds < 1e6:
            raise PolicyError("first-answer takes a number of seconds from 0 up")


@dataclass(frozen=True, slots=True)
class Certificate:
    """TLS: a certificate chain and its key, as PEM files."""

    chain: Path
    key: Path


def require_private_line(address: Address, certificate: Certificate | None, plain_http: bool) -> None:
    """Refuse to take tokens in the clear from other machines.

    Raises:
        PolicyError: the address can be reached from elsewhere, and nothing says that the way there is protected.

    """
    if certificate is None and not plain_http and not address.is_loopback:
        raise PolicyError(
            f"tokens and answers would cross the network in the clear to {address.host}: add --certificate and --key, "
            "or --plain-http where a proxy before the server speaks TLS"
        )
