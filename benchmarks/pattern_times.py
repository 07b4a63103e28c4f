"""Time of searches with accepted patterns, on the worst texts that a search finds: python -m benchmarks.pattern_times.

Each text has the same length as the texts without a match beside it. Printed are processor seconds of a query in which
one of 100,000 rows is the worst text, and of a query in which all rows are, each over those of a query in which none
is. Beside the accepted patterns stand planted ones, which are refused.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator, Sequence

import duckdb

from dpsql.operations.cut_patterns import MAX_SEARCHED
from dpsql.operations.pattern_syntax import Anchor, Chars, Choice, Node, Repeat, parsed
from dpsql.operations.pattern_syntax import Sequence as Parts
from dpsql.operations.row_sql import total_sql, without_statistics
from tests.pattern_texts import ACCEPTED

ROWS = 100_000
TRIED = 1_000
MOST_OF_ONE, MOST_OF_ALL = 1.15, 3.0
PLANTED = ((r"^(.*)-(.*)$", 1), (r"((a|b)(a|b|c)?)*d", 1), (r"[ab]*a[ab]{20}c", 0))


def sample(node: Node, source: random.Random, longest: int) -> str:
    """Return a random text that a pattern matches, with repetitions up to a length."""
    match node:
        case Chars(ranges):
            low, high = source.choice(ranges)
            usual = [code for code in (*range(0x61, 0x7B), *range(0x20, 0x7F)) if low <= code <= high]
            return chr(
                source.choice(usual) if usual and source.random() < 0.98 else source.randint(low, min(high, 0xD7FF))
            )
        case Anchor():
            return ""
        case Choice(parts):
            return sample(source.choice(parts), source, longest)
        case Parts(parts):
            return "".join(sample(part, source, longest) for part in parts)
        case Repeat(part, least, most, _):
            times = source.choice((least, most, most) if most is not None else (least, least + 1, longest, longest))
            found = ""
            for _ in range(times):
                found += sample(part, source, 3)
                if len(found) > longest:
                    break
            return found
    raise AssertionError(node)


def candidates(pattern: str, source: random.Random, count: int) -> Iterator[str]:
    """Yield texts of full length: samples of the pattern, padded and repeated, their borders, and random signs."""
    root, most = parsed(pattern).root, MAX_SEARCHED
    samples = [
        text for text in (sample(root, source, longest) for longest in (3, 30, 450, 880, 880, 900) * count) if text
    ]
    signs = sorted({sign for text in samples for sign in text[:50]})
    for text in samples:
        yield (text * most)[:most]
        pad = source.choice(signs) * max(0, most - len(text))
        yield (pad + text)[-most:]
        yield (text + pad)[:most]
        yield (text[:-1] * most)[: most - len(text)] + text[-most:]
        yield "".join(source.choices(signs, k=most))
    for sign in signs[:20]:
        yield sign * most


def of_bytes(text: str) -> str:
    """Return the beginning of a text, filled up with spaces, so that it has as many bytes as may be searched."""
    cut = text.encode("utf-8", "replace")[:MAX_SEARCHED].decode("utf-8", "ignore")
    return cut + " " * (MAX_SEARCHED - len(cut.encode()))


class Measured:
    """Times of one call on texts."""

    def __init__(self, call: str) -> None:
        self._connection = duckdb.connect(config={"threads": "1"})
        self._call = call
        self._sql = "SELECT count(v), min(length(v::VARCHAR)) FROM (SELECT " + total_sql(call) + " AS v FROM {})"

    def seconds(self, texts: Sequence[tuple[str, int]], repeats: int) -> float:
        """Return the least processor seconds on a table of texts, each so many times."""
        self._connection.execute("CREATE OR REPLACE TABLE t (s VARCHAR)")
        for text, times in texts:
            self._connection.execute(f"INSERT INTO t SELECT $1 FROM range({times})", [text])
        source = without_statistics("t", [self._call])
        taken = []
        for _ in range(repeats):
            began = time.thread_time()
            self._connection.execute(self._sql.replace("{}", source)).fetchall()
            taken.append(time.thread_time() - began)
        return min(taken)

    def matches(self, pattern: str, text: str) -> bool:
        """Return whether a pattern matches a text."""
        found = self._connection.execute("SELECT regexp_matches($1, $2)", [text, pattern]).fetchone()
        return bool(found and found[0])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def measured(pattern: str, group: int, count: int) -> tuple[float, float, str]:
    """Return both factors of a pattern, and the worst text's beginning."""
    source = random.Random(pattern)
    measure = Measured(f"regexp_extract(\"s\", '{pattern}', {group})")
    texts = list(dict.fromkeys(of_bytes(text) for text in candidates(pattern, source, count)))
    without = [text for text in texts if not measure.matches(pattern, text)]
    without += [of_bytes(sign * MAX_SEARCHED) for sign in "~ \n-a" if not measure.matches(pattern, sign * MAX_SEARCHED)]
    if not without:
        measure.close()
        return 1.0, 1.0, "every text has a match"
    least = min(without[:10] + without[-5:], key=lambda text: measure.seconds([(text, TRIED)], 2))
    worst = sorted(texts, key=lambda text: -measure.seconds([(text, TRIED)], 1))[:5]
    worst = sorted(worst, key=lambda text: -measure.seconds([(text, TRIED)], 3))
    base = measure.seconds([(least, ROWS)], 3)
    one = measure.seconds([(least, ROWS // 2), (worst[0], 1), (least, ROWS // 2 - 1)], 3)
    every = measure.seconds([(worst[0], ROWS // 10)], 3) / measure.seconds([(least, ROWS // 10)], 3)
    measure.close()
    return one / base, every, worst[0][:30]


def main() -> None:
    """Measure every accepted pattern, and planted ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2, help="samples of each length")
    arguments = parser.parse_args()
    print(f"{'pattern':40} group  one row  all rows  worst text")
    slow = []
    for pattern, group in (*ACCEPTED, *PLANTED):
        one, every, text = measured(pattern, group, arguments.count)
        print(f"{pattern:40} {group:5} {one:8.2f} {every:9.2f}  {text!r}", flush=True)
        if (pattern, group) in ACCEPTED and (one > MOST_OF_ONE or every > MOST_OF_ALL):
            slow.append(pattern)
    print(f"accepted patterns above {MOST_OF_ONE} or {MOST_OF_ALL}: {slow or 'none'}")


if __name__ == "__main__":
    main()
