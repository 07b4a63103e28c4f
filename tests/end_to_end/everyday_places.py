"""Thirty everyday questions about a shop and a clinic, on the tables of ``everyday_schema``."""

from __future__ import annotations

from tests.end_to_end.everyday_form import EverydayText

SHOPS = (
    EverydayText(
        "S01 revenue by month and channel",
        """SELECT date_trunc('month', placed) AS month, channel, count(*) AS orders, sum(amount) AS revenue
        FROM purchase GROUP BY 1, 2 ORDER BY 1, 2""",
        ordered=True,
    ),
    EverydayText(
        "S02 the five products with the most revenue",
        """SELECT d.name, sum(p.amount) AS revenue FROM purchase p JOIN product d ON p.product = d.id
        WHERE p.status <> 'back' GROUP BY d.name ORDER BY revenue DESC LIMIT 5""",
        ordered=True,
    ),
    EverydayText(
        "S03 middle and upper order values by channel",
        """SELECT channel, percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS middle,
               percentile_cont(0.9) WITHIN GROUP (ORDER BY amount) AS upper
        FROM purchase GROUP BY channel""",
        within={"middle": 3.2, "upper": 3.2},
    ),
    EverydayText(
        "S04 buyers of each shop",
        """SELECT s.name, approx_count_distinct(p.buyer) AS buyers
        FROM purchase p JOIN shop s ON s.id = p.shop GROUP BY s.name""",
        same="""SELECT s.name, count(DISTINCT p.buyer) AS buyers
        FROM purchase p JOIN shop s ON s.id = p.shop GROUP BY s.name""",
    ),
    EverydayText(
        "S05 the usual status of an order in each channel",
        "SELECT channel, mode(status) AS usual, count(*) AS orders FROM purchase GROUP BY channel",
    ),
    EverydayText(
        "S06 orders by value and channel, with totals",
        """SELECT amount >= 100 AS large, channel, count(*) AS orders, sum(amount) AS revenue
        FROM purchase GROUP BY ROLLUP (amount >= 100, channel)""",
    ),
    EverydayText(
        "S07 orders per ISO week",
        """SELECT strftime(placed, '%G-W%V') AS week, count(*) AS orders, count(DISTINCT buyer) AS buyers
        FROM purchase GROUP BY week ORDER BY week""",
        ordered=True,
    ),
    EverydayText(
        "S08 sizes of baskets, and their share of returns",
        """SELECT CASE WHEN pieces = 1 THEN 'one' WHEN pieces <= 3 THEN 'few' ELSE 'many' END AS size,
               count(*) AS orders, avg(amount) AS mean,
               100.0 * count(*) FILTER (WHERE status = 'back') / count(*) AS percent_back
        FROM purchase GROUP BY size""",
    ),
    EverydayText(
        "S09 buyers who come again, by country",
        """SELECT country, count(*) AS buyers, count(*) FILTER (WHERE orders >= 10) AS regulars
        FROM (SELECT b.country, p.buyer, count(*) AS orders FROM purchase p JOIN buyer b ON b.id = p.buyer
              WHERE p.amount > 10 GROUP BY b.country, p.buyer) AS t
        GROUP BY country""",
    ),
    EverydayText(
        "S10 the different vouchers that a channel accepts, added up",
        "SELECT channel, sum(DISTINCT voucher) AS vouchers, count(voucher) AS used FROM purchase GROUP BY channel",
    ),
    EverydayText(
        "S11 revenue by month, with the month's name",
        """SELECT date_trunc('month', placed) AS month, any_value(monthname(date_trunc('month', placed))) AS name,
               sum(amount) AS revenue
        FROM purchase GROUP BY date_trunc('month', placed) ORDER BY month""",
        ordered=True,
    ),
    EverydayText(
        "S12 shops in one line, the best first",
        """SELECT string_agg(name, ', ' ORDER BY revenue DESC) AS best
        FROM (SELECT s.name, sum(p.amount) AS revenue FROM purchase p JOIN shop s ON s.id = p.shop GROUP BY s.name)""",
    ),
    EverydayText(
        "S13 revenue until the end of each month",
        """SELECT c.day, count(*) AS orders, sum(p.amount) AS revenue
        FROM calendar c JOIN purchase p ON p.placed::DATE <= c.day
        WHERE c.month_end GROUP BY c.day ORDER BY c.day""",
        ordered=True,
    ),
    EverydayText(
        "S14 shops beside the number of their shop, with their region",
        """SELECT p.shop, any_value(s.name) AS name, any_value(s.region) AS region, avg(p.amount) AS mean
        FROM purchase p JOIN shop s ON s.id = p.shop GROUP BY p.shop""",
    ),
    EverydayText(
        "S15 the first and the last order of each channel",
        "SELECT channel, min(placed) AS first, max(placed) AS last FROM purchase GROUP BY channel",
    ),
)
CLINICS = (
    EverydayText(
        "C16 stays and mean cost by ward and urgency",
        """SELECT w.name, s.urgent, count(*) AS stays, avg(s.cost) AS mean, count(*) / any_value(w.beds) AS per_bed
        FROM stay s JOIN ward w ON w.id = s.ward GROUP BY w.name, w.beds, s.urgent""",
    ),
    EverydayText(
        "C17 length of a stay in hours",
        """SELECT ward, avg(epoch(left_at - arrived) / 3600, contribution_bounds_per_row => (0, 100)) AS hours,
               count(*) FILTER (WHERE epoch(left_at - arrived) < 86400) AS within_a_day
        FROM stay GROUP BY ward""",
    ),
    EverydayText(
        "C18 patients by age at arrival",
        """SELECT CASE WHEN date_diff('year', p.born, s.arrived) < 18 THEN '0-17'
                    WHEN date_diff('year', p.born, s.arrived) < 65 THEN '18-64' ELSE '65+' END AS age,
               count(DISTINCT s.patient) AS patients, avg(s.cost) AS mean
        FROM stay s JOIN patient p ON p.id = s.patient GROUP BY age ORDER BY age""",
        ordered=True,
    ),
    EverydayText(
        "C19 quartiles of the cost of a stay",
        """SELECT w.name, quantile_cont(s.cost, [0.25, 0.5, 0.75]) AS quartiles
        FROM stay s JOIN ward w ON w.id = s.ward GROUP BY w.name""",
        within={"quartiles": 15.7},
    ),
    EverydayText(
        "C20 do the two blood pressures go together?",
        """SELECT p.sex, corr(v.systolic, v.diastolic) AS together, count(*) AS measured
        FROM vital v JOIN patient p ON p.id = v.patient GROUP BY p.sex""",
    ),
    EverydayText(
        "C21 line through the blood pressures",
        """SELECT regr_slope(diastolic, systolic) AS slope, regr_intercept(diastolic, systolic) AS intercept,
               regr_r2(diastolic, systolic) AS r2
        FROM vital WHERE taken >= DATE '2024-01-01'""",
    ),
    EverydayText(
        "C22 levels of triage by ward",
        "SELECT ward, histogram(triage) AS levels FROM stay GROUP BY ward",
    ),
    EverydayText(
        "C23 middle cost of urgent stays and of others",
        "SELECT urgent, dp_median(cost, 0, 1000) AS middle, dp_avg(cost, 0, 1000) AS mean FROM stay GROUP BY urgent",
        same="SELECT urgent, median(cost) AS middle, sum(cost) / count(*) AS mean FROM stay GROUP BY urgent",
        within={"middle": 15.7},
    ),
    EverydayText(
        "C24 lowest and highest blood pressure of each sex",
        """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (extremes = 'quantile')
               p.sex, min(v.systolic) AS lowest, max(v.systolic) AS highest
        FROM vital v JOIN patient p ON p.id = v.patient GROUP BY p.sex""",
        same="""SELECT p.sex, quantile_cont(v.systolic, 0.01) AS lowest, quantile_cont(v.systolic, 0.99) AS highest
        FROM vital v JOIN patient p ON p.id = v.patient GROUP BY p.sex""",
        within={"lowest": 0.6, "highest": 0.6},
    ),
    EverydayText(
        "C25 the most frequent diagnoses",
        """SELECT split_part(diagnosis, '.', 1) AS code, count(*) AS stays, count(DISTINCT patient) AS patients
        FROM stay GROUP BY code HAVING count(*) >= 100 ORDER BY stays DESC LIMIT 3""",
        ordered=True,
    ),
    EverydayText(
        "C26 patients per drug",
        """SELECT drug, count(*) AS given, count(DISTINCT patient) AS patients
        FROM (SELECT patient, unnest(string_split(drugs, ';')) AS drug FROM stay) AS t GROUP BY drug""",
    ),
    EverydayText(
        "C27 stays that begin within 30 days of the last one",
        """SELECT urgent, count(*) AS again
        FROM (SELECT urgent, arrived - lag(arrived) OVER (PARTITION BY patient ORDER BY arrived) AS pause FROM stay)
        WHERE pause < INTERVAL 30 DAY GROUP BY urgent""",
    ),
    EverydayText(
        "C28 arrivals by weekday and part of the day",
        """SELECT dayname(arrived) AS weekday, hour(arrived) // 6 AS quarter_of_day, count(*) AS arrivals
        FROM stay GROUP BY ALL HAVING count(*) > 20""",
    ),
    EverydayText(
        "C29 body mass index by sex and half century of birth",
        """SELECT p.sex, year(p.born) // 50 * 50 AS born_from, avg(v.weight / (p.height / 100) ** 2) AS bmi
        FROM vital v JOIN patient p ON p.id = v.patient GROUP BY 1, 2""",
    ),
    EverydayText(
        "C30 the diagnoses of each ward in one line",
        "SELECT ward, string_agg(DISTINCT diagnosis, ', ') AS diagnoses FROM stay GROUP BY ward",
    ),
)
