"""The comparison with other systems: its errors, bounds by hand, and that a system without an answer is left out."""

from __future__ import annotations

import json
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peers
from benchmarks.peer_systems import exchange
from benchmarks.peer_systems.by_hand import bounded, read_pairs
from benchmarks.peer_systems.exchange import Asked, Way

SCRIPTS = Path(exchange.__file__).parent
SHARED = {"exchange", "by_hand"}


def test_errors_of_a_tiny_answer() -> None:
    exact = {1: 10.0, 2: 20.0, 3: 30.0}
    found = peers.errors({1: 13, 2: 24, 9: 12}, {2: 19, 3: 31, 9: 0}, exact)
    assert found.groups == 3
    assert found.shown == pytest.approx(math.sqrt((3**2 + 4**2 + 12**2) / 3))  # key 9 has no rows
    assert found.largest == pytest.approx(math.sqrt((3**2 + 4**2 + 30**2) / 3))  # key 3 is hidden
    assert found.both == 2
    assert found.own_of_both == pytest.approx(math.sqrt((4**2 + 12**2) / 2))
    assert found.other_of_both == pytest.approx(math.sqrt((1**2 + 0**2) / 2))


def test_the_largest_groups_are_eighteen_by_the_exact_numbers() -> None:
    exact = {key: float(key) for key in range(100)}
    shown = exact | {81: 1000.0}  # the nineteenth
    assert peers.errors(shown, {}, exact).largest == 0
    assert peers.errors(exact | {82: 82 + 18.0}, {}, exact).largest == pytest.approx(math.sqrt(18**2 / 18))


def test_no_group_shown_has_no_error_over_the_shown() -> None:
    found = peers.errors({}, {1: 1.0}, {1: 5.0})
    assert (found.groups, found.both, found.largest) == (0, 0, 5)
    assert math.isnan(found.shown)
    assert math.isnan(found.other_of_both)


def test_every_system_has_a_script_and_every_script_a_system() -> None:
    scripts = {path.stem for path in SCRIPTS.glob("*.py")} - SHARED
    assert scripts == set(peers.SYSTEMS)


def test_environments_are_outside_the_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert peers.default_folder() == tmp_path / "dpsql" / "peers"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert not peers.default_folder().is_relative_to(peers.ROOT)


@pytest.mark.skipif(os.name == "nt", reason="the fake pip is a shell script")
def test_a_system_that_cannot_be_installed_is_said_and_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(home: Path, **_: object) -> None:
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").write_text("#!/bin/sh\necho 'no such version' >&2\nexit 1\n")
        (home / "bin" / "python").chmod(0o755)

    monkeypatch.setattr("venv.create", broken)
    assert peers.answers_of("opendp", tmp_path, tmp_path / "rows.csv", Asked()) == {}
    assert "opendp is left out: it cannot be installed. no such version" in capsys.readouterr().err
    assert not (tmp_path / "opendp" / "installed.txt").exists()  # the next run tries again


def _served(monkeypatch: pytest.MonkeyPatch, folder: Path, way: Way, asked: Asked) -> dict[str, Any]:
    answers = folder / "answers.json"
    monkeypatch.setattr(sys, "argv", ["script", str(folder / "rows.csv"), str(answers), exchange.as_text(asked)])
    exchange.serve("numpy", lambda _rows, given: [way] if given == asked else [])
    return dict(json.loads(answers.read_text()))


def test_answers_are_written_with_the_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepared: list[int] = []
    way = Way("plain", "a note", {"people": lambda: {7: np.float64(3)}}, lambda: prepared.append(1))
    found = _served(monkeypatch, tmp_path, way, Asked(releases=2))
    assert found["version"] == version("numpy")
    (entry,) = found["answers"]
    assert (entry["way"], entry["note"], entry["question"]) == ("plain", "a note", "people")
    assert [one["shown"] for one in entry["releases"]] == [[[7, 3.0]]] * 2
    assert len(prepared) == 2


def test_a_slow_question_is_asked_fewer_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    way = Way("plain", "", {"people": dict})
    found = _served(monkeypatch, tmp_path, way, Asked(releases=5, seconds=1e-12))
    (entry,) = found["answers"]
    assert len(entry["releases"]) == 1


def test_bounds_by_hand_hold_for_every_person(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    rows = [(person, key) for person in range(30) for key in generator.integers(0, 12, 40)]
    file = tmp_path / "rows.csv"
    file.write_text('"person","key","amount"\n' + "".join(f"{person},{key},1.5\n" for person, key in rows))
    person, key, counts = read_pairs(file)
    assert counts.sum() == len(rows)
    # a key per pair, so that the person of a pair that counts can be told
    kept, numbers = bounded((person, np.arange(len(key)), counts), 4, 2)
    assert numbers.max() == 2
    assert np.bincount(person[kept]).tolist() == [4] * 30
    assert len(np.unique(kept)) == len(kept)
