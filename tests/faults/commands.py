"""The commands that faults are tried against, each with what it reads, what it writes, and how it may end."""

from __future__ import annotations

from dataclasses import dataclass

from faults.scene import SMALL, SWEEP, TRAIN


@dataclass(frozen=True)
class Command:
    """A command line, typed in the scene.

    reads      files and folders of the scene that belong to a run and that it reads
    writes     files and folders of the scene that are its result
    like       the command whose uninterrupted result is its own: a resumed training ends as one that was not interrupted
    trains     it keeps checkpoints, so that what was trained is not lost
    ranks      it runs under torchrun, in two processes
    slow       it takes tens of seconds
    """

    name: str
    words: tuple[str, ...]
    writes: tuple[str, ...]
    reads: tuple[str, ...] = ()
    like: str | None = None
    trains: bool = False
    ranks: bool = False
    slow: bool = False

    @property
    def verb(self) -> str:
        return self.words[0]


_OF_RUN = ("finished",)
_QUIET = ("--quiet", "--json")

COMMANDS = {
    command.name: command
    for command in (
        Command("train", (*TRAIN, "new"), ("new",), trains=True),
        Command("resume", (*TRAIN, "half"), ("half",), ("half",), like="train", trains=True),
        Command("train again", (*TRAIN, "finished"), ("finished",), _OF_RUN, trains=True),
        Command("ranks", (*TRAIN, "new"), ("new",), trains=True, ranks=True, slow=True),
        Command(
            "finetune",
            ("finetune", "finished", "--epochs", "1", *_QUIET, "--out", "tuned"),
            ("tuned",),
            _OF_RUN,
            trains=True,
        ),
        Command(
            "retrain",
            (
                "retrain",
                "finished",
                "--weights",
                "0.5",
                "--epochs",
                "1",
                "--phases",
                "2",
                *_QUIET,
                "--out",
                "retrained",
            ),
            ("retrained",),
            _OF_RUN,
            trains=True,
        ),
        Command("curve", ("curve", "finished", "--at", "0.5", *_QUIET), ("finished/curves",), _OF_RUN),
        Command(
            "compress", ("compress", "finished", "--filters", "0.5", *_QUIET, "--out", "small"), ("small",), _OF_RUN
        ),
        Command(
            "export",
            ("compress", "finished", "--filters", "0.5", "--onnx", *_QUIET, "--out", "small"),
            ("small",),
            _OF_RUN,
            slow=True,
        ),
        Command(
            "report",
            ("report", "finished", "half", "--json", "--out", "page.html"),
            ("page.html", "page_files"),
            ("finished", "half"),
        ),
        Command("sweep", (*SWEEP, "swept"), ("swept",), slow=True),
        Command(
            "join",
            ("sweep", "--join", "sqlite:///begun/ledger.db", "--out", "begun", "--workers", "1", "--json"),
            ("begun",),
            slow=True,
        ),
        Command(
            "reproduce",
            (
                *("reproduce", "gradients", "--quick", "--seeds", "1", *SMALL, "--set", "train.epochs=1"),
                *(*_QUIET, "--out", "reproduced"),
            ),
            ("reproduced",),
            slow=True,
        ),
        Command(
            "bench", ("bench", "train", "digits-resnet", "--rows", "filters", "--seconds", "0", *SMALL, "--json"), ()
        ),
    )
}
# Verbs that no fault is tried against.
LEFT_OUT = {
    "demo": "trains, measures and draws as train, curve, compress and report do, for three minutes",
    "list": "reads no file of the user's and writes none",
}
