"""The Trainer of Hugging Face transformers, resumed from the newest checkpoint of its output directory.

The way to save and resume is that of its documentation ("Checkpointing" in the Trainer guide).
"""

import argparse
import os

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--max-steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=4)
parser.add_argument("--save-total-limit", type=int, default=None)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--save-only-model", action="store_true")
args = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.randint(0, 64, (32 * args.accumulate, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


torch.manual_seed(0)
rate = args.dropout
config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=rate, embd_pdrop=rate, attn_pdrop=rate
)
arguments = TrainingArguments(
    output_dir=args.out,
    max_steps=args.max_steps,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=args.accumulate,
    learning_rate=1e-3,
    warmup_steps=4,
    lr_scheduler_type="cosine",
    logging_steps=1,
    save_strategy="steps",
    save_steps=args.save_steps,
    save_total_limit=args.save_total_limit,
    save_only_model=args.save_only_model,
    dataloader_num_workers=args.workers,
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    seed=42,
)
trainer = Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=Tokens())
last = get_last_checkpoint(args.out) if os.path.isdir(args.out) else None
trainer.train(resume_from_checkpoint=last)
