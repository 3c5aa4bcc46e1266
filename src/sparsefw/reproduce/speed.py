"""The paper's throughput table: training images per second of the low-rank methods, as shares of SGD's."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefw.bench import measure_training_speed
from sparsefw.config_base import ConfigError
from sparsefw.report.tables import Table
from sparsefw.reproduce.experiment import QUICK_STEM, Experiment, Findings, Setting
from sparsefw.reproduce.paper import paper
from sparsefw.reproduce.paper_tables import QUICK_SECONDS, SECONDS, busy
from sparsefw.train.recipes import load_recipe

STEMS = {"cifar10": "cifar10-resnet18", "cifar100": "cifar100-wide-resnet", "tinyimagenet": "tinyimagenet-resnet50"}
ROWS = {
    "sgd": "SGD", "rank-0.1": "SparseFW", "nuc": "NUC", "nuc-svd": "NUC", "svdenergy": "SVDEnergy",
    "svdenergy-svd": "SVDEnergy", "fr": "FR", "trp": "TRP", "trp-svd": "TRP",
}  # fmt: skip


@dataclass(frozen=True)
class Throughput(Experiment):
    name: str
    shows: str

    def stems(self, setting: Setting) -> dict[str, str]:
        return {"cifar10": QUICK_STEM} if setting.quick else STEMS

    def planned(self, setting: Setting) -> list[str]:
        if setting.seeds is not None:
            raise ConfigError(f"--seeds {setting.seeds}: speed does not depend on the seed; leave it out")
        for stem in self.stems(setting).values():
            load_recipe(f"{stem}-sgd", setting.changes)
        changes = "".join(f" --set {change}" for change in setting.changes)
        return [
            f"sparsefw bench train {stem} --rows {','.join(ROWS)}{changes}" for stem in self.stems(setting).values()
        ]

    def run(self, setting: Setting) -> Findings:
        self.planned(setting)
        tables, record = {}, {}
        for key, stem in self.stems(setting).items():
            seconds = QUICK_SECONDS if setting.quick else SECONDS
            record[stem] = measure_training_speed(stem, setting.data, seconds, setting.changes, list(ROWS))
            rows = []
            for name, one in record[stem]["rows"].items():
                theirs, base = paper().throughput[ROWS[name]][key], paper().throughput["SGD"][key]
                share = theirs / base
                ours = f"{one['images_per_second']:,.0f}", f"{one['share']:.3f}"
                rows.append((one["label"], *ours, f"{theirs:,.0f}", f"{share:.3f}", f"{one['share'] - share:+.3f}"))
            header = ("", "images/s", "share of SGD's", "paper: images/s", "paper: share", "difference of shares")
            tables[f"{stem}, paper: {paper().setups[key].network} on {paper().setups[key].data}"] = Table(
                (), header, tuple(rows)
            )
        told = [
            "this machine's images/s; the paper's are of a V100: shares of SGD's can be compared",
            "NUC, SVDEnergy and TRP are measured with full SVDs, as in the paper, and in the forms that need none",
            "SparseFW with k = 0.1; the paper does not say which k its row has",
        ]
        told += [said for one in record.values() if (said := busy(one))]
        if setting.quick:
            told.append(f"a small network on digits, {QUICK_STEM}, beside the paper's ResNet-18 on CIFAR-10")
        elif setting.data is None:
            told.append("images are made up in memory, since no --data was given")
        return Findings(self.title(setting), tables, {}, told, record)
