"""Commands of the server: serve and token."""

from __future__ import annotations

import argparse

from dpsql.access.tokens import add_token
from dpsql.errors import PolicyError
from dpsql.frontends.commands.database_files import existing_state, open_session
from dpsql.frontends.server.doors import Urls, doors_of
from dpsql.frontends.server.settings import Settings


def serve(arguments: argparse.Namespace) -> None:
    """Answer analysts until a signal.

    Raises:
        PolicyError: an argument makes no sense, or the extra ``server`` is not installed.
        StateError: the curator has to accept the state file first.

    """
    existing_state(arguments)
    with open_session(arguments) as session:
        session.check_state()
        settings = Settings(
            workers=arguments.workers,
            at_once=arguments.at_once,
            waiting=arguments.waiting,
            timeout_seconds=arguments.timeout,
            first_answer_seconds=arguments.first_answer,
            ask_by_get=arguments.ask_by_get,
        )
        doors = doors_of(arguments)
        try:
            from dpsql.frontends.server.running import run_until_signalled  # noqa: PLC0415 — an extra's packages
        except ImportError as error:
            raise PolicyError(f"dpsql serve needs {error.name}: pip install 'dpsql[server]'") from None
        run_until_signalled(session, doors, settings, _announce)


def token(arguments: argparse.Namespace) -> None:
    """Print a new token, once."""
    print(add_token(arguments.add_to, arguments.name))


def _announce(urls: Urls) -> None:
    print(f"analysts: {urls.analysts}", flush=True)
    if urls.curator is not None:
        print(f"curator:  {urls.curator}", flush=True)
