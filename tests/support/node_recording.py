"""Node records of runs that are killed."""

from pathlib import Path

from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, WatchedSession, WatchedSource
from specdec.traces import NodeRecords, record_nodes
from tests.support.registry import SIX_IDS

PROMPTS = [[i % 6, (i * i) % 6, 2, 3] for i in range(5)]
NEW = 16
SAMPLED = SamplingParams(temperature=1.0)


class Killed(BaseException):
    """What no part of the program catches."""


class _Dying(WatchedSession):
    def __init__(self, inner, calls):
        super().__init__(inner)
        self.calls = calls

    def propose(self, *arguments) -> Draft:
        self.calls.append(1)
        if len(self.calls) == self.calls.limit:
            raise Killed
        return self.inner.propose(*arguments)


class _Calls(list):
    limit = 0


def dying(source, limit: int):
    """Return a source that dies in its so manyth draft."""
    calls = _Calls()
    calls.limit = limit
    return WatchedSource(source, lambda session, oracle, num_rows: _Dying(session, calls))


def recorded(folder: Path, source, **options) -> NodeRecords:
    # A table gives the same bits in every batch.
    decoder = SpeculativeDecoder(SIX_IDS.other, source)
    return record_nodes(decoder, folder, PROMPTS, NEW, SAMPLED, batch_size=2, **options)
