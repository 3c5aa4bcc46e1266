"""The Trainer of transformers trains as the plain loop does, resumes to the bit, and its network can be compressed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from integrations.plain_loop import assert_equal
from sparsefw import SFW, Sizes, compress, constrain, load, save
from sparsefw.integrations.requirements import prepare_torchvision

prepare_torchvision()
pytest.importorskip("transformers", reason="needs transformers: pip install 'sparsefw[transformers]'")
pytest.importorskip("accelerate", reason="needs accelerate: pip install 'sparsefw[transformers]'")

from transformers import BertConfig, BertForSequenceClassification, TrainingArguments  # noqa: E402

from sparsefw.integrations.transformers import SparseFWTrainer  # noqa: E402

WORDS, LENGTH, BATCH, STEPS = 30, 8, 8, 6
TOKENS = torch.randint(WORDS, (BATCH * STEPS, LENGTH), generator=torch.Generator().manual_seed(0))
CLASSES = TOKENS[:, 0] % 3
DATA = [{"input_ids": tokens, "labels": label} for tokens, label in zip(TOKENS, CLASSES, strict=True)]
BETAS, DECAY, LR, CLIP = (0.9, 0.99), 0.05, 2e-3, 1.0


def network(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=LENGTH, num_labels=3, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def arguments(folder, **more) -> TrainingArguments:
    settings = dict(
        output_dir=str(folder), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=LR, weight_decay=DECAY,
        adam_beta2=BETAS[1], max_grad_norm=CLIP, warmup_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no", logging_strategy="no", train_sampling_strategy="sequential",
    )  # fmt: skip
    return TrainingArguments(**{**settings, **more})


def trainer(folder, net, **settings) -> SparseFWTrainer:
    own = {
        name: settings.pop(name) for name in ("kind", "over_sizes", "train_dataset", "optimizers") if name in settings
    }
    data = own.pop("train_dataset", DATA)
    own = {"kind": "neurons", **own}
    return SparseFWTrainer(
        net,
        arguments(folder, **settings),
        train_dataset=data,
        example=TOKENS[:2],
        constrained={"report": None},
        compute_loss_func=mean_loss,
        **own,
    )


def mean_loss(output, labels, num_items_in_batch):
    return cross_entropy(output.logits, labels, reduction="sum") / num_items_in_batch


def trained_by_the_plain_loop(over_sizes: bool, accumulate: int) -> nn.Module:
    net = network()
    steps = STEPS // accumulate
    decayed = [name for name, _ in net.named_parameters() if name.endswith("weight") and "LayerNorm" not in name]
    groups = constrain(net, "neurons", example=TOKENS[:2], steps=steps, report=None)
    groups = groups.without_decay(name for name, _ in net.named_parameters() if name not in decayed)
    optimizer = SFW(groups, lr=LR, rest="adamw", weight_decay=DECAY, adam_betas=BETAS)
    factor = lambda i: i / 2 if i < 2 else (steps - i) / max(1, steps - 2)  # noqa: E731
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    sizes = Sizes(net, "neurons", example=TOKENS[:2])
    net.train()
    for i, (tokens, labels) in enumerate(zip(TOKENS.split(BATCH), CLASSES.split(BATCH), strict=True)):
        if over_sizes:
            with sizes.mixed(i // accumulate):
                mean_loss(net(tokens), labels, BATCH * accumulate).backward()
        else:
            mean_loss(net(tokens), labels, BATCH * accumulate).backward()
        if (i + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return net


@pytest.mark.parametrize(("over_sizes", "accumulate"), [(True, 1), (False, 1), (True, 2)])
def test_it_trains_as_the_plain_loop(tmp_path, over_sizes, accumulate):
    net = network()
    steps = dict(max_steps=STEPS // accumulate, gradient_accumulation_steps=accumulate)
    trainer(tmp_path, net, over_sizes={} if over_sizes else None, **steps).train()
    assert_equal(net, trained_by_the_plain_loop(over_sizes, accumulate))


@pytest.mark.parametrize("kind", ["neurons", "rank"])
def test_a_resumed_training_ends_in_the_same_weights(tmp_path, kind):
    whole, resumed = network(dropout=0.1), network(dropout=0.1)
    saving = dict(save_strategy="steps", save_steps=STEPS // 2, train_sampling_strategy="random")
    trainer(tmp_path, whole, kind=kind, **saving).train()
    again = trainer(tmp_path, resumed, kind=kind, **saving)
    again.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{STEPS // 2}"))
    assert_equal(resumed, whole)


def test_what_it_trained_can_be_compressed(tmp_path):
    net = network()
    run = trainer(tmp_path / "run", net)
    run.train()
    small = compress(net, neurons=0.5, calibration=run.get_train_dataloader())
    save(small, tmp_path / "small")
    again = load(tmp_path / "small").model.eval()
    with torch.no_grad():
        assert torch.allclose(again(TOKENS).logits, small.model.eval()(TOKENS).logits, atol=1e-5)
    assert again.bert.encoder.layer[0].intermediate.dense.out_features == 16


def test_the_steps_are_counted_in_epochs(tmp_path):
    run = trainer(tmp_path, network(), max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=2)
    run.train()
    assert {group["rescale"].steps for group in run.optimizer.param_groups if group["region"]} == {STEPS}


def test_an_own_optimizer_is_taken(tmp_path):
    net = network()
    own = torch.optim.SGD(net.parameters(), lr=0.1)
    run = trainer(tmp_path, net, optimizers=(own, None))
    run.train()
    assert run.optimizer.optimizer is own


def test_an_unknown_length_is_refused(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(DATA)

    with pytest.raises(ValueError, match="max_steps"):
        trainer(tmp_path, network(), train_dataset=Stream(), max_steps=-1)
    with pytest.raises(ValueError, match=r"^the number of steps is not known before train\(\): SFW is made by it$"):
        trainer(tmp_path, network()).create_optimizer()


def test_what_cannot_be_is_refused(tmp_path, monkeypatch):
    with pytest.raises(
        ValueError, match=r"^optim='adafactor': what SFW leaves free takes the steps of one of adamw_torch,"
    ):
        trainer(tmp_path, network(), optim="adafactor").train()
    with pytest.raises(ValueError, match=r"^of a batch of 4 in this process, one of 5 networks sees nothing"):
        trainer(tmp_path, network(), per_device_train_batch_size=4, over_sizes={"draws": 4})
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match=r"^nn.DataParallel copies layers without their sizes"):
        trainer(tmp_path, network())


@pytest.mark.parametrize(("by", "attribute"), [("DeepSpeed", "is_deepspeed_enabled"), ("FSDP", "is_fsdp_enabled")])
def test_sharded_weights_are_refused(tmp_path, monkeypatch, by, attribute):
    create = SparseFWTrainer.create_accelerator_and_postprocess

    def with_shards(self):
        create(self)
        setattr(self, attribute, True)

    monkeypatch.setattr(SparseFWTrainer, "create_accelerator_and_postprocess", with_shards)
    with pytest.raises(ValueError, match=f"^{by} shards weights, and SFW needs each of them whole"):
        trainer(tmp_path, network())
