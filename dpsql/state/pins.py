"""Which points a reader was shown, and points made of independent releases: rows that are written once."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from dpsql.state.records import Pin, Point


def insert_pins(connection: sqlite3.Connection, pins: Sequence[Pin]) -> None:
    """Write what a reader is shown; what they were shown before for the same question stays."""
    connection.executemany(
        "INSERT INTO pin (analyst, statistic_hash, asked_rho, query_rho, own_release, served_rho, release_rho, "
        "has_threshold) VALUES (lower(?), ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [
            (
                pin.analyst,
                pin.statistic_hash,
                pin.asked_rho_nano,
                pin.query_rho_nano,
                int(pin.own_release),
                pin.rho_nano,
                pin.release_rho_nano,
                int(pin.has_threshold),
            )
            for pin in pins
        ],
    )


def read_pins(connection: sqlite3.Connection, statistic_hash: str, analyst: str) -> tuple[Pin, ...]:
    """Return what a reader was shown of a statistic; letters A to Z in names are the same in either case."""
    rows = connection.execute(
        "SELECT analyst, statistic_hash, asked_rho, query_rho, own_release, served_rho, release_rho, has_threshold "
        "FROM pin WHERE statistic_hash = ? AND analyst = lower(?)",
        (statistic_hash, analyst),
    ).fetchall()
    return tuple(
        Pin(name, statistic, asked, whole, bool(own), served, release, bool(threshold))
        for name, statistic, asked, whole, own, served, release, threshold in rows
    )


def insert_lowered_point(connection: sqlite3.Connection, point: Point, blob: bytes) -> None:
    """Write a point beside those that other releases have at its level."""
    connection.execute(
        "INSERT INTO lowered_point (statistic_hash, rho_nano, release_rho, frame_hash, value_count, lattice_exponent, "
        "sigma, created_at, noisy_values, correlation, floor_correlation, floor) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            point.statistic_hash,
            point.rho_nano,
            point.release_rho_nano,
            point.frame_hash,
            len(point.values),
            point.lattice_exponent,
            point.sigma,
            point.created_at.isoformat(),
            blob,
            point.correlation,
            point.floor_correlation,
            point.floor,
        ),
    )
