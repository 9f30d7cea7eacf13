"""Masked language modelling with a small BERT and Hugging Face's Trainer."""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments, set_seed

MASK, SPECIAL, IGNORED = 1, 2, -100


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out-mlm"))
    parser.add_argument("--sentences", type=int, default=1600)
    parser.add_argument("--length", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=48)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--order", choices=["random", "sequential"], default="random")
    parser.add_argument("--dtype", choices=["float32", "float64"], default="float32")
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


class MaskedSentences(Dataset):
    """Sentences whose words follow from their neighbours; 15 % are masked, as for BERT."""

    def __init__(self, count, length, vocab, seed) -> None:
        generator = torch.Generator().manual_seed(seed)
        words = vocab - SPECIAL
        steps = torch.randint(1, 3, (count, 1), generator=generator).expand(-1, length)
        starts = torch.randint(4, (count, 1), generator=generator)
        self.labels = SPECIAL + (starts + steps.cumsum(1)) % words
        masked = torch.rand(count, length, generator=generator).argsort(1) < round(0.15 * length)
        self.inputs = self.labels.masked_fill(masked, MASK)
        self.labels = self.labels.masked_fill(~masked, IGNORED)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index):
        return {"input_ids": self.inputs[index], "labels": self.labels[index]}


def make_model(args):
    config = BertConfig(
        vocab_size=args.vocab,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.length,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    return BertForMaskedLM(config).to(getattr(torch, args.dtype))


def accuracy(prediction):
    """The share of masked words that are found."""
    logits, labels = torch.tensor(prediction.predictions), torch.tensor(prediction.label_ids)
    known = labels != IGNORED
    return {"accuracy": (logits.argmax(-1) == labels)[known].float().mean().item()}


def main():
    args = parse_args()
    set_seed(args.seed)
    train_set = MaskedSentences(args.sentences, args.length, args.vocab, args.seed)
    eval_set = MaskedSentences(200, args.length, args.vocab, args.seed + 1)
    trainer = Trainer(
        model=make_model(args),
        args=TrainingArguments(
            output_dir=str(args.out),
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=100,
            learning_rate=args.lr,
            warmup_steps=args.warmup_steps,
            train_sampling_strategy=args.order,
            logging_steps=25,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            seed=args.seed,
        ),
        train_dataset=train_set,
        eval_dataset=eval_set,
        compute_metrics=accuracy,
    )
    trainer.train()
    found = trainer.evaluate()
    print({name: found[name] for name in ("eval_loss", "eval_accuracy")}, flush=True)
    trainer.save_model(str(args.out / "final"))


if __name__ == "__main__":
    main()
