"""Lookahead decoding of one row, one node at a time: two branches as lists of paths, a pool as a list."""

from collections.abc import Callable


class LookaheadRow:
    """What one request drafts, step by step.

    Args:
        prompt: ids.
        predict: the model's likeliest id after a sequence of ids.
    """

    def __init__(
        self,
        prompt: list[int],
        predict: Callable[[list[int]], int],
        window: int,
        ngram: int,
        guesses: int,
        pool_size: int,
        from_prompt: bool,
    ) -> None:
        self.ids, self.predict = list(prompt), predict
        self.window, self.ngram, self.guesses = window, ngram, guesses
        self.pool_size, self.from_prompt = pool_size, from_prompt
        self.pool: list[list[int]] = []
        self.levels: list[list[int]] = []
        latest = list(prompt)
        while len(latest) < (ngram - 1) * window:
            latest = list(prompt) + latest
        latest = latest[len(latest) - (ngram - 1) * window :]
        for level in range(ngram - 1):
            self.levels.append(latest[level * window : (level + 1) * window])
        if from_prompt:
            for end in range(ngram, len(prompt) + 1):
                self.remember(prompt[end - ngram : end])

    def remember(self, ngram: list[int]) -> None:
        """Put an n-gram at the new end of the pool."""
        self.pool = [other for other in self.pool if other != ngram] + [ngram]
        if len(self.pool) > self.pool_size:
            del self.pool[0]

    def verified_paths(self, depth: int, nodes: int) -> list[list[int]]:
        """Return the nodes of the verification branch, each as its path from the pending token."""
        found = [ngram[1:] for ngram in reversed(self.pool) if ngram[0] == self.ids[-1]]
        paths: list[list[int]] = []
        for guess in found[: self.guesses]:
            for length in range(1, min(depth, len(guess)) + 1):
                if guess[:length] not in paths and len(paths) < nodes:
                    paths.append(guess[:length])
        return paths

    def column_path(self, level: int, column: int) -> list[int]:
        """Return what a window node sees behind the pending token, itself included."""
        along = [self.levels[0][j] for j in range(1, column + 1)]
        return along + [self.levels[lower][column] for lower in range(1, level + 1)]

    def num_columns(self, depth: int, nodes: int) -> int:
        """Return how many columns fit."""
        fit = 0
        for columns in range(1, self.window + 1):
            deepest = len(self.column_path(self.ngram - 2, columns - 1))
            if deepest <= depth and columns * (self.ngram - 1) - 1 <= nodes:
                fit = columns
        return fit

    def step(self, depth: int, nodes: int, emitted: list[int]) -> list[tuple[list[int], bool]]:
        """Return the draft as (path, is it a scout), and go on to the next step with what the oracle emitted."""
        verified = self.verified_paths(depth, nodes)
        columns = self.num_columns(depth, nodes - len(verified))
        draft = [(path, False) for path in verified]
        for level in range(self.ngram - 1):
            for column in range(columns):
                if (level, column) != (0, 0):
                    draft.append((self.column_path(level, column), True))
        self.learn(columns)
        for token in emitted:
            self.ids.append(token)
            if self.from_prompt and len(self.ids) >= self.ngram:
                self.remember(self.ids[len(self.ids) - self.ngram :])
        return draft

    def learn(self, columns: int) -> None:
        """Ask the model what follows each column, and move those columns by one level."""
        pending = self.ids[-1]
        new = [self.predict(self.ids + self.column_path(self.ngram - 2, column)) for column in range(columns)]
        for column in range(columns):
            own = [level[column] for level in self.levels]
            if column == 0:
                own[0] = pending
            self.remember([*own, new[column]])
            for level in range(self.ngram - 2):
                self.levels[level][column] = self.levels[level + 1][column]
            self.levels[self.ngram - 2][column] = new[column]
