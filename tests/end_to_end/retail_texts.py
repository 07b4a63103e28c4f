"""Thirty reports of a shop with three channels: texts of several private parts and public tables.

The kinds of texts follow those of decision support benchmarks such as TPC-DS: channels beside each other, this year
beside last year, shares of a total, many scalars in one row. Words, tables and columns are our own. The tables are
those of ``retail_schema``. Each text has a name, what is right of it, and its SQL:

- ``equal``: without noise, the rows are those of plain DuckDB for the same text
- ``order``: so is their order
- ``refused``: no private answer is defined, and nothing is charged
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RetailText:
    """One report: its name, what is right of it, and its SQL."""

    name: str
    right: str
    sql: str


CHANNELS = RetailText(
    "R01 channels with labels, rolled up again outside",
    "order",
    """
    SELECT channel, category, sum(sales) AS sales, sum(n) AS n
    FROM (
        SELECT 'store' AS channel, i.category, sum(s.amount) AS sales, count(*) AS n
        FROM store_sales s JOIN item i ON s.item = i.id JOIN date_dim d ON s.day = d.day
        WHERE d.year = 2024 AND d.quarter = 4 GROUP BY i.category
        UNION ALL
        SELECT 'web', i.category, sum(w.amount), count(*)
        FROM web_sales w JOIN item i ON w.item = i.id JOIN date_dim d ON w.day = d.day
        WHERE d.year = 2024 AND d.quarter = 4 GROUP BY i.category
        UNION ALL
        SELECT 'catalog', i.category, sum(c.amount), count(*)
        FROM catalog_sales c JOIN item i ON c.item = i.id JOIN date_dim d ON c.day = d.day
        WHERE d.year = 2024 AND d.quarter = 4 GROUP BY i.category
    ) AS channels
    GROUP BY ROLLUP (channel, category) ORDER BY channel, category""",
)
YEARS = RetailText(
    "R02 this year beside last year, by month",
    "order",
    """
    WITH this AS (
        SELECT d.month, sum(s.amount) AS sales FROM store_sales s JOIN date_dim d ON s.day = d.day
        WHERE d.year = 2024 GROUP BY d.month
    ), last AS (
        SELECT d.month, sum(s.amount) AS sales FROM store_sales s JOIN date_dim d ON s.day = d.day
        WHERE d.year = 2023 GROUP BY d.month
    )
    SELECT this.month, last.sales AS before, this.sales, this.sales * 100.0 / last.sales - 100 AS growth
    FROM this JOIN last ON this.month = last.month ORDER BY this.month""",
)
HOURS_RATIO = RetailText(
    "R03 ratio of the morning to the evening on the web",
    "equal",
    """
    SELECT (SELECT count(*) FROM web_sales WHERE hour BETWEEN 7 AND 9)
         / (SELECT count(*) FROM web_sales WHERE hour BETWEEN 18 AND 21) AS morning_to_evening""",
)
SHARE_OF_TOTAL = RetailText(
    "R04 share of each category in all sales",
    "equal",
    """
    SELECT i.category, sum(s.amount) AS sales, sum(s.amount) * 100.0 / (SELECT sum(amount) FROM store_sales) AS share
    FROM store_sales s JOIN item i ON s.item = i.id GROUP BY i.category""",
)
STORES_WITH_ZEROS = RetailText(
    "R05 returns of every store, zeros included",
    "order",
    """
    SELECT st.name, st.state, coalesce(r.n, 0) AS returns, coalesce(r.value, 0) AS value
    FROM store st LEFT JOIN (
        SELECT store, count(*) AS n, sum(amount) AS value FROM store_returns GROUP BY store
    ) r ON r.store = st.id
    ORDER BY returns DESC, st.name""",
)
KEYS_WITH_ZEROS = RetailText(
    "R06 rows joined to a public list of keys",
    "equal",
    """
    SELECT store, count(customer) AS n
    FROM store_sales RIGHT JOIN (SELECT DISTINCT id AS store FROM store WHERE space > 300) AS open USING (store)
    GROUP BY store""",
)
ITEM_NAMES = RetailText(
    "R07 names and list prices beside an answer by item",
    "order",
    """
    SELECT i.name, i.brand, t.sold, t.sold * i.price AS list_value
    FROM (SELECT item, sum(quantity) AS sold FROM catalog_sales GROUP BY item) t JOIN item i ON i.id = t.item
    ORDER BY list_value DESC, i.name LIMIT 10""",
)
ABOVE_AVERAGE = RetailText(
    "R08 items that sell better than the average item",
    "equal",
    """
    WITH sold AS (SELECT item, sum(amount) AS sales FROM web_sales GROUP BY item)
    SELECT i.category, count(*) AS items, sum(sold.sales) AS sales
    FROM sold JOIN item i ON i.id = sold.item
    WHERE sold.sales > (SELECT avg(sales) FROM sold)
    GROUP BY i.category HAVING sum(sold.sales) > 2 * (SELECT avg(sales) FROM sold)""",
)
NEXT_MONTH = RetailText(
    "R09 each month beside the next one",
    "order",
    """
    WITH monthly AS (
        SELECT d.year * 12 + d.month - 1 AS nr, sum(s.amount) AS sales, count(*) AS n
        FROM store_sales s JOIN date_dim d ON s.day = d.day GROUP BY 1
    )
    SELECT a.nr // 12 AS year, a.nr % 12 + 1 AS month, a.sales, b.sales AS later, b.sales - a.sales AS growth,
           (b.n - a.n) / a.n AS growth_of_receipts
    FROM monthly a JOIN monthly b ON b.nr = a.nr + 1 ORDER BY a.nr""",
)
IN_ALL_CHANNELS = RetailText(
    "R10 items that all three channels sell",
    "equal",
    """
    SELECT item FROM store_sales GROUP BY item
    INTERSECT SELECT item FROM web_sales GROUP BY item
    INTERSECT SELECT item FROM catalog_sales GROUP BY item""",
)
ONLY_IN_STORES = RetailText(
    "R11 names of items that stores sell and the web does not",
    "equal",
    """
    WITH alone AS (SELECT DISTINCT item FROM store_sales EXCEPT SELECT DISTINCT item FROM web_sales)
    SELECT i.name, i.category FROM alone JOIN item i ON i.id = alone.item""",
)
SALES_AND_RETURNS = RetailText(
    "R12 sales and returns by store, where either may be missing",
    "equal",
    """
    WITH sold AS (SELECT store, sum(amount) AS sales, sum(profit) AS profit FROM store_sales GROUP BY store),
         back AS (SELECT store, sum(amount) AS returned, count(*) AS n FROM store_returns GROUP BY store)
    SELECT coalesce(sold.store, back.store) AS store, coalesce(sales, 0) AS sales, coalesce(returned, 0) AS returned,
           coalesce(profit, 0) - coalesce(returned, 0) AS net, n
    FROM sold FULL JOIN back ON sold.store = back.store""",
)
HOURS_IN_ONE_ROW = RetailText(
    "R13 half a day of counts in one row",
    "equal",
    """
    SELECT *
    FROM (SELECT count(*) AS h8_to_9 FROM store_sales s, store t WHERE s.store = t.id AND t.state = 'TX'
          AND s.hour BETWEEN 8 AND 9) a,
         (SELECT count(*) AS h10_to_11 FROM store_sales s, store t WHERE s.store = t.id AND t.state = 'TX'
          AND s.hour BETWEEN 10 AND 11) b,
         (SELECT count(*) AS h12_to_13 FROM store_sales s, store t WHERE s.store = t.id AND t.state = 'TX'
          AND s.hour BETWEEN 12 AND 13) c
    CROSS JOIN (SELECT count(DISTINCT customer) AS people, avg(amount) AS mean FROM store_sales WHERE hour > 13) d""",
)
BANDS_BY_CASE = RetailText(
    "R14 one of two averages for each band, by a count",
    "equal",
    """
    SELECT CASE WHEN (SELECT count(*) FROM store_sales WHERE quantity BETWEEN 1 AND 2) > 500
                THEN (SELECT avg(amount) FROM store_sales WHERE quantity BETWEEN 1 AND 2)
                ELSE (SELECT avg(profit) FROM store_sales WHERE quantity BETWEEN 1 AND 2) END AS small,
           CASE WHEN (SELECT count(*) FROM store_sales WHERE quantity BETWEEN 3 AND 6) > 5000
                THEN (SELECT avg(amount) FROM store_sales WHERE quantity BETWEEN 3 AND 6)
                ELSE (SELECT avg(profit) FROM store_sales WHERE quantity BETWEEN 3 AND 6) END AS large
    FROM store WHERE id = 1""",
)
DAYS_OF_PROMOTIONS = RetailText(
    "R15 sales between the first and the last day of promotions",
    "equal",
    """
    SELECT i.category, sum(s.amount) AS sales, count(*) AS n
    FROM store_sales s JOIN item i ON s.item = i.id
    WHERE s.day BETWEEN (SELECT min(starts) FROM promotion WHERE medium = 'tv')
                    AND (SELECT max(ends) FROM promotion WHERE medium = 'tv')
    GROUP BY i.category""",
)
EITHER_LIST = RetailText(
    "R16 rows of either public list",
    "equal",
    """
    SELECT hour, count(*) AS n, sum(amount) AS sales
    FROM store_sales
    WHERE item IN (SELECT id FROM item WHERE brand = 'Alto') OR store IN (SELECT id FROM store WHERE state = 'NV')
    GROUP BY hour""",
)
SUM_BY_LIST = RetailText(
    "R17 sums of the items of public lists",
    "equal",
    """
    SELECT store,
           sum(CASE WHEN item IN (SELECT id FROM item WHERE category = 'Music') THEN amount ELSE 0 END) AS music,
           sum(CASE WHEN item NOT IN (SELECT item FROM promotion) THEN amount ELSE 0 END) AS without_promotion
    FROM store_sales GROUP BY store""",
)
PROMOTED_OR_NOT = RetailText(
    "R18 whether an item was ever promoted, as a key",
    "equal",
    """
    SELECT CASE WHEN EXISTS (SELECT 1 FROM promotion p WHERE p.item = w.item AND p.medium <> 'tv')
                THEN 'promoted' ELSE 'plain' END AS sort,
           count(*) AS n, avg(w.profit) AS profit
    FROM web_sales w GROUP BY 1""",
)
SIZES_OF_ORDERS = RetailText(
    "R19 a list of constants with labels, joined to rows",
    "equal",
    """
    WITH size AS (
        SELECT 1 AS pieces, 'one' AS label UNION ALL SELECT 2, 'few' UNION ALL SELECT 3, 'few'
        UNION ALL SELECT 4, 'many'
    )
    SELECT size.label, count(*) AS n, sum(w.amount) AS sales
    FROM web_sales w JOIN size ON w.quantity = size.pieces GROUP BY size.label""",
)
AT_LEAST = RetailText(
    "R20 receipts of at least so many pieces",
    "equal",
    """
    SELECT step.pieces, count(*) AS n, sum(c.amount) AS sales
    FROM catalog_sales c CROSS JOIN (SELECT unnest(generate_series(1, 3)) AS pieces) AS step
    WHERE c.quantity >= step.pieces * 2 GROUP BY step.pieces""",
)
PUBLIC_ALONE = RetailText(
    "R21 a public table alone",
    "order",
    """
    SELECT category, count(*) AS items, min(price) AS cheapest, max(price) AS dearest
    FROM item WHERE id NOT IN (SELECT item FROM promotion WHERE medium = 'mail')
    GROUP BY category HAVING count(*) > 2 ORDER BY category""",
)
OUTLETS = RetailText(
    "R22 outlets of all channels with their totals",
    "equal",
    """
    SELECT 'store' AS channel, t.name AS outlet, sum(s.amount) AS sales, sum(s.profit) AS profit
    FROM store_sales s JOIN store t ON s.store = t.id GROUP BY ROLLUP (t.name)
    UNION ALL
    SELECT 'web', h.name, sum(w.amount), sum(w.profit)
    FROM web_sales w JOIN warehouse h ON w.warehouse = h.id GROUP BY ROLLUP (h.name)
    UNION ALL
    SELECT 'catalog', h.name, sum(c.amount), sum(c.profit)
    FROM catalog_sales c JOIN warehouse h ON c.warehouse = h.id GROUP BY ROLLUP (h.name)""",
)
BEST_OF_CHANNELS = RetailText(
    "R23 the three best items of each channel",
    "order",
    """
    SELECT channel, item, sales, place
    FROM (
        SELECT channel, item, sales, rank() OVER (PARTITION BY channel ORDER BY sales DESC) AS place
        FROM (
            SELECT 'web' AS channel, item, sum(amount) AS sales FROM web_sales GROUP BY item
            UNION ALL SELECT 'catalog', item, sum(amount) FROM catalog_sales GROUP BY item
        ) AS sold
    ) AS ranked
    WHERE place <= 3 ORDER BY channel, place, item""",
)
RETURN_RATES = RetailText(
    "R24 the five items with the largest share of returns",
    "order",
    """
    SELECT i.name, s.sold, r.returned, r.returned / s.sold AS share
    FROM (SELECT item, sum(quantity) AS sold FROM store_sales GROUP BY item) s
    JOIN (SELECT item, sum(quantity) AS returned FROM store_returns GROUP BY item) r ON r.item = s.item
    JOIN item i ON i.id = s.item AND i.price > 5
    ORDER BY share DESC, i.name LIMIT 5""",
)
SPACE_OF_STORES = RetailText(
    "R25 two statistics beside the space of a store",
    "equal",
    """
    SELECT t.name, s.sales / t.space AS sales_per_space, r.people * 100.0 / s.people AS returning_percent
    FROM store t
    JOIN (SELECT store, sum(amount) AS sales, count(DISTINCT customer) AS people FROM store_sales GROUP BY store) s
      ON s.store = t.id
    LEFT JOIN (SELECT store, count(DISTINCT customer) AS people FROM store_returns GROUP BY store) r
      ON r.store = t.id""",
)
THREE_LEVELS = RetailText(
    "R26 three levels of CTEs",
    "equal",
    """
    WITH store_part AS (
        SELECT d.year, d.quarter, sum(s.profit) AS profit
        FROM store_sales s JOIN date_dim d ON s.day = d.day GROUP BY ALL
    ), web_part AS (
        SELECT d.year, d.quarter, sum(w.profit) AS profit
        FROM web_sales w JOIN date_dim d ON w.day = d.day GROUP BY ALL
    ), parts AS (
        SELECT 'store' AS channel, * FROM store_part UNION ALL SELECT 'web', * FROM web_part
    ), quarters AS (
        SELECT year, quarter, sum(profit) AS profit, max(profit) AS best FROM parts GROUP BY year, quarter
    )
    SELECT parts.channel, quarters.year, quarters.quarter, parts.profit * 100.0 / quarters.profit AS share
    FROM quarters JOIN parts ON parts.year = quarters.year AND parts.quarter = quarters.quarter
    WHERE quarters.profit > (SELECT avg(profit) FROM quarters)""",
)
ABOVE_CHANNELS = RetailText(
    "R27 items above the average of all channels",
    "equal",
    """
    WITH average AS (
        SELECT avg(sales) AS sales FROM (
            SELECT sum(amount) AS sales FROM store_sales GROUP BY item
            UNION ALL SELECT sum(amount) FROM web_sales GROUP BY item
            UNION ALL SELECT sum(amount) FROM catalog_sales GROUP BY item
        ) AS parts
    )
    SELECT i.brand, s.item, sum(s.amount) AS sales FROM store_sales s JOIN item i ON i.id = s.item
    GROUP BY i.brand, s.item HAVING sum(s.amount) > (SELECT sales FROM average)""",
)
REGULARS = RetailText(
    "R28 people who often buy, beside all people of a state",
    "equal",
    """
    WITH regular AS (
        SELECT c.state, count(*) AS people
        FROM (SELECT customer, count(*) AS n FROM web_sales GROUP BY customer HAVING count(*) >= 3) AS often
        JOIN customer c ON c.id = often.customer GROUP BY c.state
    ), everybody AS (SELECT state, count(*) AS people, avg(born) AS born FROM customer GROUP BY state)
    SELECT state, regular.people, regular.people / everybody.people AS share, everybody.born
    FROM everybody LEFT JOIN regular USING (state)""",
)
CORRELATED = RetailText(
    "R29 a private subquery for each row outside",
    "refused",
    """
    SELECT i.name, (SELECT count(*) FROM store_sales s WHERE s.item = i.id) AS n FROM item i WHERE i.price > 5""",
)
ROWS_BESIDE_ANSWER = RetailText(
    "R30 rows joined with an answer",
    "refused",
    """
    SELECT s.hour, count(*) AS n
    FROM store_sales s JOIN (SELECT item, avg(amount) AS mean FROM store_sales GROUP BY item) t ON s.item = t.item
    WHERE s.amount > 1.2 * t.mean GROUP BY s.hour""",
)
TEXTS = tuple(value for value in globals().values() if isinstance(value, RetailText))
"""All texts, in their order."""
