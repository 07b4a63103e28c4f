"""Doors of ``dpsql serve``: where it listens, and for whom."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from dpsql.access.tokens import Tokens, analysts_of, curators_of, read_tokens
from dpsql.errors import PolicyError
from dpsql.remote.analyst import is_loopback


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


@dataclass(frozen=True, slots=True)
class Certificate:
    """TLS: a certificate chain and its key, as PEM files."""

    chain: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Door:
    """One address with those who may come in by it."""

    address: Address
    tokens: Tokens


@dataclass(frozen=True, slots=True)
class Doors:
    """The door for analysts, that of the curator if there is one, and the certificate of both."""

    analysts: Door
    curator: Door | None = None
    certificate: Certificate | None = None


@dataclass(frozen=True, slots=True)
class Urls:
    """The addresses at which the server listens."""

    analysts: str
    curator: str | None = None


def doors_of(arguments: argparse.Namespace) -> Doors:
    """The doors that the arguments of ``dpsql serve`` name, with the tokens in their files.

    Raises:
        PolicyError: an argument or a file makes no sense, or tokens would cross the network in the clear: an address
            can be reached from other machines, and nothing says that the way there is protected.

    """
    if (arguments.certificate is None) != (arguments.key is None):
        raise PolicyError("--certificate and --key go together")
    certificate = None if arguments.key is None else Certificate(arguments.certificate, arguments.key)
    analysts = Door(Address.of(arguments.listen), analysts_of(read_tokens(arguments.analysts)))
    if (arguments.curator_listen is None) != (arguments.curator_tokens is None):
        raise PolicyError("--curator-listen and --curator-tokens go together")
    curator = (
        None
        if arguments.curator_listen is None
        else Door(Address.of(arguments.curator_listen), curators_of(read_tokens(arguments.curator_tokens)))
    )
    open_hosts = [
        door.address.host for door in (analysts, curator) if door is not None and not is_loopback(door.address.host)
    ]
    if open_hosts and certificate is None and not arguments.plain_http:
        raise PolicyError(
            f"tokens and answers would cross the network in the clear to {open_hosts[0]}: add --certificate and --key, "
            "or --plain-http where a proxy before the server speaks TLS"
        )
    return Doors(analysts, curator, certificate)
