"""A boundary for analysts who must not see rows: private answers over HTTP, each through ``Analyst.sql``."""
