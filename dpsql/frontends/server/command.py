"""``dpsql serve`` and ``dpsql token``: their arguments, and what is checked before anything listens."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dpsql.errors import PolicyError
from dpsql.frontends.server.settings import Address, Certificate, Settings, require_private_line
from dpsql.frontends.server.tokens import add_token, analysts_of, curators_of, read_tokens
from dpsql.session import Session

if TYPE_CHECKING:
    from dpsql.frontends.server.running import Urls

_DEFAULTS = Settings()


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything but the database."""
    parser.add_argument("--listen", required=True, metavar="HOST:PORT", help="where analysts connect; port 0: any free")
    parser.add_argument("--analysts", required=True, type=Path, metavar="FILE", help="tokens, made by dpsql token")
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="TLS certificate chain")
    parser.add_argument("--key", type=Path, metavar="PEM", help="its private key")
    parser.add_argument("--plain-http", action="store_true", help="no TLS, though other machines can connect")
    parser.add_argument("--curator-listen", metavar="HOST:PORT", help="where the curator sees metrics and all releases")
    parser.add_argument("--curator-tokens", type=Path, metavar="FILE", help="tokens of the name curator")
    parser.add_argument("--ask-by-get", action="store_true", help="let GET /v1/result.parquet?sql=… ask, and charge")
    for name, kind, metavar, text in (
        ("workers", int, "N", "questions worked on at a time"),
        ("at-once", int, "N", "the same of one analyst; more than 1 lets them time one question by another"),
        ("waiting", int, "N", "questions of one analyst that may wait"),
        ("timeout", float, "SECONDS", "most time until an answer"),
        ("first-answer", float, "SECONDS", "answers are shown after this time, or 2, 4, 8 … times it; 0: at once"),
    ):
        default = getattr(_DEFAULTS, _FIELDS.get(name, name.replace("-", "_")))
        parser.add_argument(
            f"--{name}", type=kind, default=default, metavar=metavar, help=f"{text} (default {default})"
        )


_FIELDS = {"timeout": "timeout_seconds", "first-answer": "first_answer_seconds"}


def add_token_arguments(parser: argparse.ArgumentParser) -> None:
    """Whom a token is for, and where its hash goes."""
    parser.add_argument("name", metavar="NAME", help="the analyst, as in CALL dp_analyst(…); or curator")
    parser.add_argument(
        "--add-to", required=True, type=Path, metavar="FILE", help="file of tokens; it gets a hash, never the token"
    )


def make_token(arguments: argparse.Namespace) -> None:
    """Print a new token, once."""
    sys.stdout.write(f"{add_token(arguments.add_to, arguments.name)}\n")


def run_server(session: Session, arguments: argparse.Namespace) -> None:
    """Answer until a signal.

    Raises:
        PolicyError: an argument makes no sense, or the extra ``server`` is not installed.

    """
    settings = Settings(
        workers=arguments.workers,
        at_once=arguments.at_once,
        waiting=arguments.waiting,
        timeout_seconds=arguments.timeout,
        first_answer_seconds=arguments.first_answer,
        ask_by_get=arguments.ask_by_get,
    )
    certificate = _certificate(arguments)
    analysts = Address.of(arguments.listen), analysts_of(read_tokens(arguments.analysts))
    curator = None
    if (arguments.curator_listen is None) != (arguments.curator_tokens is None):
        raise PolicyError("--curator-listen and --curator-tokens go together")
    if arguments.curator_listen is not None:
        curator = Address.of(arguments.curator_listen), curators_of(read_tokens(arguments.curator_tokens))
    for address, _ in (analysts, *([curator] if curator else [])):
        require_private_line(address, certificate, arguments.plain_http)
    try:
        from dpsql.frontends.server.running import Door, run_until_signalled  # noqa: PLC0415 — an extra's packages
    except ImportError as error:
        raise PolicyError(f"dpsql serve needs {error.name}: pip install 'dpsql[server]'") from None
    run_until_signalled(
        session, Door(*analysts), None if curator is None else Door(*curator), settings, certificate, _announce
    )


def _certificate(arguments: argparse.Namespace) -> Certificate | None:
    if (arguments.certificate is None) != (arguments.key is None):
        raise PolicyError("--certificate and --key go together")
    return None if arguments.key is None else Certificate(arguments.certificate, arguments.key)


def _announce(urls: Urls) -> None:
    sys.stdout.write(f"analysts: {urls.analysts}\n")
    if urls.curator is not None:
        sys.stdout.write(f"curator:  {urls.curator}\n")
    sys.stdout.flush()
