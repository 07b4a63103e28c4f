"""Thirty everyday questions about a web log and sensors at homes, on the tables of ``everyday_schema``."""

from __future__ import annotations

from tests.end_to_end.everyday_form import EverydayText

WEB = (
    EverydayText(
        "W31 hits and visitors of each day",
        """SELECT seen::DATE AS day, count(*) AS hits, count(DISTINCT visitor) AS visitors
        FROM hit GROUP BY day ORDER BY day""",
        ordered=True,
    ),
    EverydayText(
        "W32 share of errors by hour",
        """SELECT extract(hour FROM seen) AS hour, count(*) AS hits, count_if(status >= 500) AS errors,
               round(100.0 * count_if(status >= 500) / count(*), 1) AS percent
        FROM hit GROUP BY 1""",
    ),
    EverydayText(
        "W33 traffic of robots",
        """SELECT regexp_matches(agent, 'bot|crawler|spider') AS robot, count(*) AS hits, sum(bytes) AS bytes
        FROM hit GROUP BY robot""",
    ),
    EverydayText(
        "W34 the pages with the most hits, without their numbers",
        """SELECT regexp_replace(url, '[0-9]+', 'N', 'g') AS page, count(*) AS hits
        FROM hit WHERE status = 200 GROUP BY page ORDER BY hits DESC LIMIT 5""",
        ordered=True,
    ),
    EverydayText(
        "W35 response times by part of the site",
        """SELECT split_part(url, '/', 2) AS part, count(*) AS hits, quantile_cont(ms, [0.5, 0.95]) AS half_and_slow
        FROM hit GROUP BY part""",
        within={"half_and_slow": 15.7},
    ),
    EverydayText(
        "W36 typical response time of both variants",
        "SELECT variant, geomean(ms) AS typical, avg(ms) AS mean FROM hit GROUP BY variant",
    ),
    EverydayText(
        "W37 visitors of both variants who pay",
        """SELECT variant, count(DISTINCT visitor) AS visitors,
               count(DISTINCT visitor) FILTER (WHERE url LIKE '/pay/thanks/%') AS buyers,
               count(DISTINCT CASE WHEN url LIKE '/help/%' THEN visitor END) AS asking
        FROM hit GROUP BY variant""",
    ),
    EverydayText(
        "W38 long addresses and short ones",
        """SELECT CASE WHEN strlen(url) > 20 THEN 'long' ELSE 'short' END AS address, count(*) AS hits,
               avg(strlen(url), contribution_bounds_per_row => (0, 100)) AS mean
        FROM hit GROUP BY address""",
    ),
    EverydayText(
        "W39 sites that visitors come from",
        r"""SELECT regexp_extract(referrer, '^https?://(?:www\.)?([^/]+)', 1) AS site,
               count(DISTINCT visitor) AS visitors
        FROM hit WHERE referrer <> '' GROUP BY site""",
    ),
    EverydayText(
        "W40 working hours, evenings and weekends",
        """SELECT CASE WHEN dayofweek(seen) IN (0, 6) THEN 'weekend' WHEN hour(seen) BETWEEN 9 AND 17 THEN 'work'
                    ELSE 'evening' END AS part, count(*) AS hits, count(*) / count(DISTINCT visitor) AS per_visitor
        FROM hit GROUP BY part""",
    ),
    EverydayText(
        "W41 hits by variant and failure, with all totals",
        "SELECT variant, status >= 400 AS failed, count(*) AS hits FROM hit GROUP BY CUBE (variant, status >= 400)",
    ),
    EverydayText(
        "W42 mean and spread of the hits of a day",
        """SELECT avg(hits) AS mean, stddev(hits) AS spread
        FROM (SELECT seen::DATE AS day, count(*) AS hits FROM hit GROUP BY day) AS days""",
    ),
    EverydayText(
        "W43 traffic from mails",
        """SELECT CASE WHEN url LIKE '%?from=%' THEN split_part(url, '?from=', 2) ELSE 'direct' END AS source,
               count(*) AS hits, sum(bytes) / 1e6 AS megabytes
        FROM hit GROUP BY source HAVING count(*) > 50""",
    ),
    EverydayText(
        "W44 how many pages a visitor sees",
        """SELECT least(pages, 10) AS pages, count(*) AS visitors
        FROM (SELECT visitor, count(DISTINCT url) AS pages FROM hit GROUP BY visitor) AS t GROUP BY 1 ORDER BY 1""",
        ordered=True,
    ),
    EverydayText(
        "W45 the last errors",
        "SELECT * FROM hit WHERE status = 500 ORDER BY seen DESC LIMIT 20",
    ),
)
SENSORS = (
    EverydayText(
        "M46 a day in steps of two hours",
        """SELECT time_bucket(INTERVAL '2 hours', seen) AS step, avg(celsius) AS mean, count(*) AS measured
        FROM measure WHERE seen >= DATE '2024-03-05' AND seen < DATE '2024-03-06' GROUP BY step ORDER BY step""",
        ordered=True,
    ),
    EverydayText(
        "M47 temperature and humidity of each room",
        """SELECT room, avg(celsius) AS celsius, stddev(celsius) AS spread, avg(humidity) AS humidity
        FROM measure WHERE state = 'ok' GROUP BY room""",
    ),
    EverydayText(
        "M48 the coldest and the warmest of each room",
        """SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (extremes = 'quantile')
               room, min(celsius) AS coldest, avg(celsius) AS mean, max(celsius) AS warmest
        FROM measure GROUP BY room""",
        same="""SELECT room, quantile_cont(celsius, 0.01) AS coldest, avg(celsius) AS mean,
               quantile_cont(celsius, 0.99) AS warmest
        FROM measure GROUP BY room""",
        within={"coldest": 0.7, "warmest": 0.7},
    ),
    EverydayText(
        "M49 nine tenths of the power stay below",
        """SELECT h.region, approx_quantile(m.watts, 0.9) AS most FROM measure m JOIN home h ON h.id = m.home
        GROUP BY h.region""",
        same="""SELECT h.region, quantile_cont(m.watts, 0.9) AS most FROM measure m JOIN home h ON h.id = m.home
        GROUP BY h.region""",
        within={"most": 31.3},
    ),
    EverydayText(
        "M50 the middle humidity of each room",
        """SELECT room, percentile_disc(0.5) WITHIN GROUP (ORDER BY humidity) AS middle
        FROM measure GROUP BY room""",
        within={"middle": 1.6},
    ),
    EverydayText(
        "M51 warmth, damp and power together",
        """SELECT room, covar_samp(celsius, humidity) AS damp, covar_pop(celsius, watts) AS power
        FROM measure GROUP BY room""",
    ),
    EverydayText(
        "M52 the usual state of each firmware",
        """SELECT split_part(replace(firmware, 'v', ''), '.', 1) AS major, mode(state) AS usual, count(*) AS measured
        FROM measure GROUP BY major""",
    ),
    EverydayText(
        "M53 ranges of temperature",
        "SELECT room, histogram(celsius, [10, 15, 20, 25, 30]) AS ranges FROM measure GROUP BY room",
    ),
    EverydayText(
        "M54 power by tariff",
        """SELECT t.name, avg(m.watts) AS watts, sum(m.watts * t.cents) / 1000 AS cost
        FROM measure m JOIN tariff t ON hour(m.seen) BETWEEN t.from_hour AND t.to_hour GROUP BY t.name""",
    ),
    EverydayText(
        "M55 homes whose sensors fail again and again",
        """SELECT h.region, count(*) AS homes
        FROM home h JOIN (SELECT home, count(*) AS failures FROM measure WHERE state = 'fail'
                          GROUP BY home HAVING count(*) >= 3) AS t ON t.home = h.id
        GROUP BY h.region""",
    ),
    EverydayText(
        "M56 power by age of the home",
        """SELECT datediff('year', h.built, DATE '2024-03-01') // 10 * 10 AS age, avg(m.watts) AS watts
        FROM measure m JOIN home h ON h.id = m.home GROUP BY age ORDER BY age""",
        ordered=True,
    ),
    EverydayText(
        "M57 rooms with low batteries in a list",
        """SELECT list(room ORDER BY low DESC) AS rooms
        FROM (SELECT room, count_if(state = 'low') AS low FROM measure GROUP BY room) AS t""",
    ),
    EverydayText(
        "M58 measures of each day, and the share of failures",
        """SELECT seen::DATE AS day, count(*) AS measured, avg(CASE WHEN state = 'fail' THEN 1 ELSE 0 END) AS failing
        FROM measure GROUP BY 1 ORDER BY 1""",
        ordered=True,
    ),
    EverydayText(
        "M59 the three sensors with the most power",
        "SELECT sensor, sum(watts) AS watts FROM measure GROUP BY sensor ORDER BY watts DESC LIMIT 3",
        ordered=True,
    ),
    EverydayText(
        "M60 warm rooms of old homes",
        """SELECT m.room, count(*) AS measured, count(*) FILTER (WHERE m.celsius > 24) AS warm, avg(m.watts) AS watts
        FROM measure m JOIN home h ON h.id = m.home WHERE h.built < DATE '1980-01-01' GROUP BY m.room""",
    ),
)
