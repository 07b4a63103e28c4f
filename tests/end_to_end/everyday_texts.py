"""Sixty everyday questions about a shop, a clinic, a web log and sensors at homes, in the spelling of DuckDB.

They were written before the code that answers them. About half of them use spellings of analysts: quantiles within a
group, lists of quantiles, modes, histograms, correlations, weeks, patterns, words of a text, texts around an answer.
Words, tables and columns are our own. The tables are those of ``everyday_schema``.
"""

from __future__ import annotations

from tests.end_to_end.everyday_logs import SENSORS, WEB
from tests.end_to_end.everyday_places import CLINICS, SHOPS

TEXTS = (*SHOPS, *CLINICS, *WEB, *SENSORS)
"""All texts, in their order."""
