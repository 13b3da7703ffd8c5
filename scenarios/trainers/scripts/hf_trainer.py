"""A tiny GPT-2 trained by the Trainer of transformers, continued from the last checkpoint that the output directory holds.

The pattern is that of https://huggingface.co/docs/transformers/trainer#checkpoints and of the example scripts of transformers
(`run_clm.py`): `get_last_checkpoint(output_dir)` and `trainer.train(resume_from_checkpoint=...)`. The data has eight batches an
epoch (four updates with `--accumulate 2`). Two ranks: under `torchrun --nproc-per-node 2`.
"""

import argparse
import os
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint


class Sentences(torch.utils.data.Dataset):
    """32 rows of a counting language; with `noise` every read replaces one token by a random one."""

    def __init__(self, rows=32, noise=False):
        self.rows = torch.randint(30, (rows, 12), generator=torch.Generator().manual_seed(7)).cumsum(1) % 30
        self.noise = noise

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        tokens = self.rows[index].clone()
        if self.noise:
            tokens[torch.randint(12, ())] = torch.randint(30, ())
        return {"input_ids": tokens, "labels": tokens}


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):  # noqa: ARG002 (the library passes them)
        if state.is_world_process_zero and "loss" in logs:
            print(f"step {state.global_step} loss {float(logs['loss']).hex()} lr {logs['learning_rate']!r}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--epochs", type=float, help="instead of --max-steps")
    parser.add_argument("--save-strategy", choices=["steps", "epoch"], default="steps")
    parser.add_argument("--save-steps", type=int, default=4)
    parser.add_argument("--save-total-limit", type=int)
    parser.add_argument("--save-only-model", action="store_true")
    parser.add_argument("--load-best", action="store_true", help="evaluate at each save, keep and load the best one")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--dataloader-workers", type=int, default=0)
    parser.add_argument("--noise", action="store_true", help="the dataset draws random numbers")
    options = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=options.out,
        max_steps=-1 if options.epochs else options.max_steps,
        num_train_epochs=options.epochs or 3,
        per_device_train_batch_size=4 // int(os.environ.get("WORLD_SIZE", "1")),
        gradient_accumulation_steps=options.accumulate,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=4,
        logging_steps=1,
        save_strategy=options.save_strategy,
        save_steps=options.save_steps,
        eval_strategy=options.save_strategy if options.load_best else "no",
        eval_steps=options.save_steps,
        load_best_model_at_end=options.load_best,
        save_total_limit=options.save_total_limit,
        save_only_model=options.save_only_model,
        dataloader_num_workers=options.dataloader_workers,
        seed=42,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    set_seed(arguments.seed)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    trainer = Trainer(
        model, arguments, train_dataset=Sentences(noise=options.noise), eval_dataset=Sentences(8), callbacks=[PrintLoss()]
    )
    last = get_last_checkpoint(options.out) if Path(options.out).is_dir() else None
    print(f"resuming from {last}", flush=True)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    main()
