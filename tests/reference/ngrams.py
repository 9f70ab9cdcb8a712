"""An interpolated n-gram model with absolute discounting, straight from its formula."""

from collections import Counter, defaultdict


class ScalarNGram:
    """P(w | h) = max(c(h, w) - d, 0) / C(h) + d T(h) / C(h) P(w | h'), ended by 1 / V below the empty context."""

    def __init__(self, sequences: list[list[int]], vocab_size: int, order: int, discount: float | None = None) -> None:
        self.vocab_size, self.order = vocab_size, order
        self.counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for ids in sequences:
            for at, token in enumerate(ids):
                for length in range(min(at, order - 1) + 1):
                    self.counts[tuple(ids[at - length : at])][token] += 1
        self.discounts = [self._discount(length) if discount is None else discount for length in range(order)]

    def _discount(self, length: int) -> float:
        counts = [c for context, row in self.counts.items() if len(context) == length for c in row.values()]
        once, twice = counts.count(1), counts.count(2)
        return min(max(once / (once + 2 * twice) if once + twice else 0.0, 0.1), 0.9)

    def prob(self, token: int, context: tuple[int, ...]) -> float:
        """Return P(token | context)."""
        context = context[max(len(context) - self.order + 1, 0) :]
        shorter = self.prob(token, context[1:]) if context else 1 / self.vocab_size
        if context not in self.counts:
            return shorter
        row, d = self.counts[context], self.discounts[len(context)]
        total = sum(row.values())
        return max(row[token] - d, 0) / total + d * len(row) / total * shorter

    def law(self, context: tuple[int, ...]) -> list[float]:
        """Return P(. | context)."""
        return [self.prob(token, context) for token in range(self.vocab_size)]
