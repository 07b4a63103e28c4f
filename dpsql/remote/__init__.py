"""An analyst's session with a server of ``dpsql serve``: the same ``sql`` as on a handle in the curator's process.

ana = dpsql.remote.connect("https://stats.example:8642", token="…")
ana.sql("SELECT city, count(*) FROM visits GROUP BY city", rho=0.05).df()
"""

from dpsql.remote.analyst import RemoteAnalyst, connect

__all__ = ["RemoteAnalyst", "connect"]
