"""``dpsql dbt init`` writes two files, or none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dpsql.errors import PolicyError
from dpsql.frontends.cli import main
from dpsql.frontends.dbt.model_options import model_options
from dpsql.frontends.dbt.project import PACKAGE


def test_init_writes_a_profile_and_names_the_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dbt_project.yml").write_text("name: x\nprofile: 'my clinic'  # ours\n")
    assert main(["dbt", "init", "--project-dir", str(tmp_path), "--database", "data/clinic.duckdb"]) == 0
    profile = (tmp_path / "profiles.yml").read_text()
    assert profile.startswith('"my clinic":\n')
    assert 'path: "data/clinic.duckdb"' in profile
    assert "module: dpsql.frontends.dbt.plugin" in profile
    (folder,) = re.findall(r'^packages:\n  - local: "(.*)"\n$', (tmp_path / "packages.yml").read_text())
    assert not Path(folder).is_absolute()
    assert (tmp_path / folder).samefile(PACKAGE)
    assert (PACKAGE / "dbt_project.yml").is_file()
    assert "dbt deps" in capsys.readouterr().out


@pytest.mark.parametrize("existing", ["profiles.yml", "packages.yml"])
def test_init_overwrites_nothing(tmp_path: Path, existing: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dbt_project.yml").write_text("profile: clinic\n")
    (tmp_path / existing).write_text("mine")
    assert main(["dbt", "init", "--project-dir", str(tmp_path)]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["dbt_project.yml", existing])
    assert (tmp_path / existing).read_text() == "mine"
    message = capsys.readouterr().err
    assert f"{existing} would be overwritten; write this by hand" in message
    assert ("- local:" in message) == (existing == "packages.yml")


@pytest.mark.parametrize(("text", "complaint"), [(None, "there is no"), ("name: x\n", "names no profile")])
def test_init_wants_a_project(
    tmp_path: Path, text: str | None, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "dbt_project.yml").write_text(text)
    assert main(["dbt", "init", "--project-dir", str(tmp_path)]) == 1
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "profiles.yml").exists()


def test_a_misspelled_option_is_told_and_other_words_pass() -> None:
    config = {"epsilon": "1e-1", "tags": [], "meta": {}, "post-hook": [], "owner": "ana", "row": 1, "rho": None}
    assert model_options("m", config, {"meta", "tags", "post_hook"}) == {"epsilon": 0.1}
    by_column = {"target_half_width": {"visits": 50, "cost": "5e3"}, "confidence": "0.9"}
    assert model_options("m", by_column, ()) == {
        "target_half_width": {"visits": 50, "cost": 5000.0},
        "confidence": 0.9,
    }
    in_steps = {"target_relative_error": "1e-1", "max_rho": 0.5, "at_least": "0.9"}
    assert model_options("m", in_steps, ()) == {"target_relative_error": 0.1, "max_rho": 0.5, "at_least": 0.9}
    for word, option in (
        ("target_halfwidth", "target_half_width"),
        ("target_relativ_error", "target_relative_error"),
        ("atleast", "at_least"),
        ("maxrho", "max_rho"),
        ("epsilo", "epsilon"),
        ("Delta", "delta"),
        ("roh", "rho"),
        ("max_group_contributd", "max_"),
    ):
        with pytest.raises(PolicyError, match=f"model 'm' has the config word '{word}': write '{option}"):
            model_options("m", config | {word: 1}, {"meta"})
