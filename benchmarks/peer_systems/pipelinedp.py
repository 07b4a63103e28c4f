"""PipelineDP on its local backend: its own bounding, Gaussian noise, and keys behind a Gaussian threshold."""

from __future__ import annotations

import csv
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import pipeline_dp

from benchmarks.peer_systems.exchange import HIGHEST_AMOUNT, LOWEST_AMOUNT, PEOPLE, ROWS, SUMS, Asked, Way, serve

METRICS: dict[str, dict[str, Any]] = {
    # the number of people is its own threshold, so no budget goes to a second count of them
    PEOPLE: {"metrics": [pipeline_dp.Metrics.PRIVACY_ID_COUNT], "post_aggregation_thresholding": True},
    ROWS: {"metrics": [pipeline_dp.Metrics.COUNT]},
    SUMS: {"metrics": [pipeline_dp.Metrics.SUM], "min_value": LOWEST_AMOUNT, "max_value": HIGHEST_AMOUNT},
}


def ways(rows: Path, asked: Asked) -> list[Way]:
    """One way: its accountant divides the budget between keys and numbers."""
    with rows.open(encoding="utf-8", newline="") as file:
        lines = csv.reader(file)
        next(lines)
        data = [(int(person), int(key), float(amount)) for person, key, amount in lines]
    note = "Gaussian noise and threshold, its naive accountant; people are counted with post_aggregation_thresholding"
    return [Way("local", note, {question: partial(_released, data, asked, METRICS[question]) for question in METRICS})]


def _released(data: list[tuple[int, int, float]], asked: Asked, metric: dict[str, Any]) -> dict[int, float]:
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=asked.epsilon, total_delta=asked.delta)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    parameters = pipeline_dp.AggregateParams(
        noise_kind=pipeline_dp.NoiseKind.GAUSSIAN,
        partition_selection_strategy=pipeline_dp.PartitionSelectionStrategy.GAUSSIAN_THRESHOLDING,
        max_partitions_contributed=asked.max_groups,
        max_contributions_per_partition=asked.max_rows,
        **metric,
    )
    columns = pipeline_dp.DataExtractors(
        privacy_id_extractor=itemgetter(0), partition_extractor=itemgetter(1), value_extractor=itemgetter(2)
    )
    released = engine.aggregate(data, parameters, columns)
    accountant.compute_budgets()
    return {key: numbers[0] for key, numbers in released}


if __name__ == "__main__":
    serve("pipeline-dp", ways)
