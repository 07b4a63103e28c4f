"""No module names a Gaussian law or a quantile of the normal law, but for those of noise and of Gaussian mechanisms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from statistics import NormalDist

import pytest

from tests.documents.pages import ROOT
from tests.structure.source_figures import Module, modules_of, parsed

GAUSSIAN = (
    "dpsql.noise",
    "dpsql.accounting",
    "dpsql.mechanism.gaussian_measure",
    "dpsql.mechanism.gaussian_walks",
    "dpsql.mechanism.correlated_gaussian",
    "dpsql.mechanism.csh",
    "dpsql.mechanism.discrete_correlated_gaussian",
    "dpsql.mechanism.factorised_gaussian",
    "dpsql.mechanism.independent_gaussian",
    "dpsql.mechanism.weighted_gaussian",
)
"""Modules that may: the measure of Gaussian noise, and mechanisms that draw it."""
NAMES = {
    *("RoundedGaussian", "CorrelatedGaussian", "DiscreteGaussian", "DiscreteCorrelatedGaussian", "GaussianLaw"),
    *("slack_delta", "slack_delta_zcdp", "gaussian_rho", "gaussian_epsilon", "gaussian_laws"),
    *("NormalDist", "erf", "erfc", "erfinv", "erfcinv", "ndtr", "ndtri", "log_ndtr", "normal_cdf"),
}
MODULES = ("dpsql.accounting.gaussian", "dpsql.noise.rounded_gaussian", "dpsql.noise.gaussian_laws", "scipy.stats")
QUANTILES = [NormalDist().inv_cdf(1.0 - miss) for miss in (0.1, 0.05, 0.025, 0.0125, 0.01, 0.005, 0.05 / 6)]


def names_of(node: ast.AST) -> Iterator[str]:
    """Yield the names of a node: of a variable, of an attribute, of each thing that it imports."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Import | ast.ImportFrom):
        source = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        yield from (alias.name for alias in node.names)
        yield from (f"{source}{alias.name}" for alias in node.names)
        yield source.removesuffix(".")


def findings(module: Module) -> Iterator[str]:
    """Yield the Gaussian laws, and the numbers near a normal quantile, that a module names."""
    for node in ast.walk(module.tree):
        for name in names_of(node):
            if name in NAMES or name in MODULES:
                yield name
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            yield from (f"{node.value}" for one in QUANTILES if abs(node.value - one) < 5e-4)


def test_no_other_module_names_a_gaussian_law() -> None:
    found = {one.name: named for one in modules_of(ROOT) if (named := list(findings(one)))}
    assert {name: named for name, named in found.items() if not name.startswith(GAUSSIAN)} == {}
    mechanisms = {name for name in found if name.startswith("dpsql.mechanism")}
    assert "dpsql.mechanism.gaussian_measure" in mechanisms
    assert mechanisms <= set(GAUSSIAN)


@pytest.mark.parametrize(
    "text",
    [
        "from statistics import NormalDist as Law",
        "import statistics\nz = statistics.NormalDist().inv_cdf(0.975)",
        "from dpsql.noise.rounded_gaussian import RoundedGaussian",
        "from dpsql.noise import rounded_gaussian",
        "from dpsql.accounting import gaussian",
        "from scipy import stats",
        "tail = 0.5 * math.erfc(x)",
        "half_width = 1.96 * sigma",
        "Z_HIGH = 2.241402727604947",
    ],
)
def test_a_planted_name_is_found(text: str) -> None:
    (module,) = parsed({"dpsql.release.planted": text})
    assert list(findings(module))
