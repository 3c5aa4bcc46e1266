"""The commands that faults are tried against, each with what it reads, what it writes, and how it may end."""

from __future__ import annotations

from dataclasses import dataclass

from faults.scene import SMALL, SWEEP, TRAIN


@dataclass(frozen=True)
class Command:
    """A command line, typed in the scene.

    line       what follows `sparsefw`
    reads      files and folders of the scene that belong to a run and that it reads, separated by spaces
    writes     files and folders of the scene that are its result
    like       the command whose uninterrupted result is its own: a resumed training ends as one that was not interrupted
    trains     it keeps checkpoints, so that what was trained is not lost
    ranks      it runs under torchrun, in two processes
    """

    name: str
    line: str
    reads: str = ""
    writes: str = ""
    like: str | None = None
    trains: bool = False
    ranks: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(self.line.split())

    @property
    def verb(self) -> str:
        return self.words[0]


COMPRESS = "compress finished --filters 0.5 --quiet --json"
EXPERIMENT = f"gradients --quick --seeds 1 {SMALL} --set train.epochs=1"

COMMANDS = {
    command.name: command
    for command in (
        Command("train", f"{TRAIN} new", writes="new", trains=True),
        Command("resume", f"{TRAIN} half", reads="half", writes="half", like="train", trains=True),
        Command("train again", f"{TRAIN} finished", reads="finished", writes="finished", trains=True),
        Command("ranks", f"{TRAIN} new", writes="new", trains=True, ranks=True),
        Command(
            "finetune",
            "finetune finished --epochs 1 --quiet --json --out tuned",
            reads="finished",
            writes="tuned",
            trains=True,
        ),
        Command(
            "retrain",
            "retrain finished --weights 0.5 --epochs 1 --phases 2 --quiet --json --out retrained",
            reads="finished",
            writes="retrained",
            trains=True,
        ),
        Command("curve", "curve finished --at 0.5 --quiet --json", reads="finished", writes="finished/curves"),
        Command("compress", f"{COMPRESS} --out small", reads="finished", writes="small"),
        Command("export", f"{COMPRESS} --onnx --out small", reads="finished", writes="small"),
        Command(
            "report",
            "report finished half --json --out page.html",
            reads="finished half",
            writes="page.html page_files",
        ),
        Command("sweep", f"{SWEEP} swept", writes="swept"),
        Command("join", "sweep --join sqlite:///begun/ledger.db --out begun --workers 1 --json", writes="begun"),
        Command("reproduce", f"reproduce {EXPERIMENT} --quiet --json --out reproduced", writes="reproduced"),
        Command("bench", f"bench train digits-resnet --rows filters --seconds 0 {SMALL} --json"),
    )
}
# Verbs that no fault is tried against.
LEFT_OUT = {
    "demo": "trains, measures and draws as train, curve, compress and report do, for three minutes",
    "list": "reads no file of the user's and writes none",
}
