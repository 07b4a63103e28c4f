"""SQL in, SQL out: parse, plan, bound and finish. No noise, no budget."""
