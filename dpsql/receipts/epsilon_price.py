"""The price in the line below an answer of a unit that counts epsilon."""

from __future__ import annotations

from dpsql.receipts import phrases, screen_words
from dpsql.receipts.receipt import Receipt


def charged_epsilon(receipt: Receipt) -> str:
    """Return the price, and what the answer alone guarantees if that is another epsilon."""
    level = phrases.charged_amount(receipt.epsilon, 0.0, receipt.amount)
    if receipt.delta >= phrases.LEAST_DELTA:
        level = screen_words.GUARANTEE.format(epsilon=f"{receipt.epsilon:.6g}", delta=f"{receipt.delta:.3g}")
    if receipt.reused:
        if receipt.asked_rho is None or phrases.is_level(receipt.asked_rho, receipt.epsilon):
            return screen_words.STORED.format(level=level)
        return screen_words.STORED_ABOVE.format(level=level, asked=f"{receipt.asked_rho:.6g}")
    if phrases.is_level(receipt.charged_rho, receipt.epsilon):
        return level
    charged = phrases.charged_amount(receipt.charged_rho, receipt.charged_delta, receipt.amount)
    return screen_words.CHARGED_FOR.format(charged=charged, level=level)
