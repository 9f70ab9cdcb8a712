"""The library's own lines: a logger, silent but for warnings; and silence while other libraries are imported."""

import logging
from importlib.util import find_spec

import pytest

import oracles
from drafts import EarlyExit
from specdec.system.logs import LOG, quiet_imports, warn_once
from tests.support.processes import python

LINES = """
import logging
import specdec.system.logs as logs

def say():
    logs.LOG.info("heard by who asks")
    logs.LOG.warning("must be seen")
    logs.warn_once("once")
    logs.warn_once("once")

say()
logs.warn_once.cache_clear()
logging.basicConfig(format="%(levelname)s %(name)s %(message)s", level="INFO")
say()
"""
PEERS = {
    "transformers": """
from oracles.huggingface.huggingface_loading import auto_models
from oracles.checkpoints.embedded_folders import EMBEDDED
models = auto_models()
from transformers.utils.logging import disable_progress_bar
disable_progress_bar()
models.from_pretrained(EMBEDDED / "code-draft-tiny")
""",
    "torchao": """
import torch
from experiments.studies.precision import with_torchao
with_torchao.quantise(torch.nn.Sequential(torch.nn.Linear(32, 32)), "int8")
""",
}


def test_warnings_alone_are_printed_until_logging_is_configured_which_gets_all_by_one_name():
    done = python("-c", LINES)
    alone = ["must be seen", "once"]
    configured = ["INFO specdec heard by who asks", "WARNING specdec must be seen", "WARNING specdec once"]
    assert (done.stdout, done.stderr.splitlines()) == ("", alone + configured)


def test_importing_is_quiet_and_leaves_logging_as_it_was(caplog):
    with quiet_imports():
        logging.getLogger("of a peer").warning("no kernel")
        logging.getLogger("of a peer").error("broken")
    LOG.warning("heard")
    assert caplog.messages == ["broken", "heard"]
    with pytest.raises(ImportError), quiet_imports():
        raise ImportError
    assert logging.root.manager.disable == logging.NOTSET
    logging.disable(logging.CRITICAL)
    try:
        with quiet_imports():
            assert logging.root.manager.disable == logging.CRITICAL
        assert logging.root.manager.disable == logging.CRITICAL
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.long
def test_peers_are_silent_as_they_are_imported():
    programs = [program for peer, program in PEERS.items() if find_spec(peer)]
    done = python("-c", "\n".join(programs))
    assert (done.returncode, done.stderr) == (0, "")


def test_drafting_by_first_layers_without_a_trained_head_is_said_once(caplog):
    warn_once.cache_clear()
    oracle = oracles.load("code-draft-tiny")
    EarlyExit(oracle, num_layers=1, head=lambda stream: stream)
    assert caplog.messages == []
    for _ in range(2):
        EarlyExit(oracle, num_layers=1)
    (line,) = caplog.messages
    words = "specdec: early_exit has no trained head: the oracle's own last one reads the stream after layer 1 of 2. "
    assert line.startswith(words)
    assert "exactspec train_head --kind early_exit" in line
