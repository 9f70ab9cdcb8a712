"""Processes that share a model and do not get on: who is gone is named, and what cannot be shared is refused."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import oracles
from oracles.parallel.ranks import RankLost, Ranks
from oracles.parallel.shares import Share
from tests.support.processes import status_of
from tests.support.ranks import start_ranks

VICTIM = 1


def lose_one(place: Path, way: str) -> None:
    """Go on until another process is gone, and write what this one is told."""
    silence = 3.0 if way == "silent" else 120.0
    Ranks.join(None, torch.device("cpu"), 120.0)
    ranks = Ranks(dist.new_group(timeout=timedelta(seconds=silence)), silence)
    for step in range(6):
        if ranks.rank == VICTIM and step == 4:
            if way == "silent":
                signal.pause()
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            (ranks.add if way == "add" else ranks.gather)(torch.ones(3))
        except RankLost as error:
            place.write_text(json.dumps([step, str(error)]), encoding="utf-8")
            return


@pytest.mark.parametrize(("way", "count"), [("gather", 4), ("add", 4), ("silent", 2)])
def test_all_others_end_and_name_the_process_that_is_gone(way: str, count: int, tmp_path: Path) -> None:
    began, running = time.monotonic(), start_ranks(lose_one, count, tmp_path, way)
    others = [rank for rank in range(count) if rank != VICTIM]
    assert [status_of(running[rank]) for rank in others] == [0] * len(others)
    assert time.monotonic() - began < 110, "nobody waited until the connection ran out of time"
    running[VICTIM].kill()
    assert status_of(running[VICTIM]) == -signal.SIGKILL
    for rank in others:
        step, words = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))
        assert (step, words.partition(":")[0]) == (4, f"rank {VICTIM} of {count} is gone")


def lose_one_of_each_pair(place: Path) -> None:
    """Share in pairs until the second of each is gone, write what this one is told, and wait for the other pair's."""
    Ranks.join(None, torch.device("cpu"), 120.0)
    pairs = [dist.new_group([first, first + 1], timeout=timedelta(seconds=120)) for first in (0, 2)]
    ranks = Ranks(pairs[dist.get_rank() // 2], 120.0)
    ranks.gather(torch.ones(3))
    if ranks.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(RankLost) as lost:
        ranks.gather(torch.ones(3))
    place.write_text(json.dumps(str(lost.value)), encoding="utf-8")
    ends = time.monotonic() + 60
    while len(list(place.parent.glob("*.json"))) < 2 and time.monotonic() < ends:
        time.sleep(0.05)


def test_each_group_of_a_mesh_names_its_own_loss(tmp_path: Path) -> None:
    running = start_ranks(lose_one_of_each_pair, 4, tmp_path)
    assert [status_of(running[rank]) for rank in (0, 2)] == [0, 0]
    told = {rank: json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 2)}
    assert {rank: words.partition(" is gone")[0] for rank, words in told.items()} == {
        0: "rank 1 of 4",
        2: "rank 3 of 4",
    }


def meet_by_hand(place: Path) -> None:
    """Meet the others as programs do that nobody told their number by the environment, and write who is found."""
    rank, count = int(os.environ["RANK"]), int(os.environ.pop("WORLD_SIZE"))
    where = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=count, timeout=timedelta(seconds=120))
    ranks = Ranks.join(None, torch.device("cpu"), 120.0)
    numbers = [int(part) for part in ranks.gather(torch.tensor([rank]))]
    place.write_text(json.dumps([ranks.rank, ranks.count, numbers]), encoding="utf-8")


def test_processes_that_met_by_hand_share_a_model(tmp_path: Path) -> None:
    running = start_ranks(meet_by_hand, 2, tmp_path)
    assert [status_of(process) for process in running] == [0, 0]
    found = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    assert found == [[0, 2, [0, 1]], [1, 2, [0, 1]]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sums": "tree"}, "sums is 'tree'; choose one of 'blocks', 'reduced'"),
        ({"num_blocks": 0}, "num_blocks is 0; give 1 to [0-9]+, the inputs of the narrowest sum"),
        ({"num_blocks": 2.5}, "num_blocks is 2.5; give 1 to"),
        ({"num_blocks": 10**6}, "num_blocks is 1000000; give 1 to"),
        ({"timeout": 0.0}, "timeout is 0.0; give seconds, more than 0"),
        ({"max_context": 0}, "max_context must be an integer, 1 or more, not 0"),
        ({"dtype": "int8"}, "dtype is 'int8'; choose one of"),
        ({"device": "cuda:99"}, "device is 'cuda:99', and this machine or this build of torch has none of that name"),
    ],
    ids=lambda value: "-".join(f"{name} {given}" for name, given in value.items()) if isinstance(value, dict) else "",
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oracles.load_parallel("code-draft", **options)


def config(**sizes: Any) -> oracles.TransformerConfig:
    return oracles.TransformerConfig(
        **{"vocab_size": 9, "hidden_size": 36, "num_layers": 1, "intermediate_size": 8, "max_context": 8, **sizes}
    )


@pytest.mark.parametrize(
    ("sizes", "count", "num_blocks", "message"),
    [
        ((6, 2), 3, 4, r"3 processes cannot share 2 key heads: start 1 or 2 or 4 or 6 or 8 of them \(torchrun"),
        ((9, 3), 2, 4, r"2 processes cannot share 3 key heads: start 1 or 3 or 6 of them \(torchrun"),
        ((9, 3), 2, None, r"2 processes cannot share 3 key heads: start 1 or 3 or 6 of them \(torchrun"),
        ((9, 3), 3, 4, "3 processes cannot share num_blocks=4 of every sum: give a multiple of 3, or sums='reduced'"),
    ],
)
def test_what_does_not_divide_is_refused(sizes: tuple[int, int], count: int, num_blocks: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Share(config(num_heads=sizes[0], num_kv_heads=sizes[1]), 0, count, num_blocks)


def test_drafts_with_a_vocabulary_of_their_own_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a draft vocabulary is small: load it whole, by oracles\.load"):
        Share(config(num_heads=2, draft_vocab_size=3), 0, 1, 4)


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="is a GGUF file, and processes share a Hugging Face directory"):
        oracles.load_parallel(path)
