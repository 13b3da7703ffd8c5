"""A regression trained by Lightning's Trainer with a checkpoint every few steps, continued by `ckpt_path="last"`.

The pattern is that of https://lightning.ai/docs/pytorch/stable/common/checkpointing_basic.html and its page "intermediate":
`ModelCheckpoint(every_n_train_steps=..., save_last=...)` and `trainer.fit(..., ckpt_path="last")`. With `--stateful` the loader
is torchdata's StatefulDataLoader, whose state Lightning keeps in the checkpoint. An epoch has eight batches.
"""

import argparse
import logging
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))

    def on_train_start(self):
        self.printed = self.global_step

    def training_step(self, batch, index):  # noqa: ARG002 (the library passes them)
        x, y = batch
        loss = nn.functional.mse_loss(self.body(x), y)
        self.log("loss", loss, on_step=True, on_epoch=False)
        return loss

    def on_train_batch_end(self, outputs, batch, index):  # noqa: ARG002 (the library passes them)
        if self.global_step > self.printed:  # with accumulation: once an update
            self.printed = self.global_step
            rate = self.optimizers().param_groups[0]["lr"]
            loss = outputs["loss"].item().hex()
            print(f"step {self.global_step} loss {loss} lr {rate!r} epoch {self.current_epoch} batch {index}", flush=True)

    def validation_step(self, batch, index):  # noqa: ARG002 (the library passes them)
        x, y = batch
        self.log("validation", nn.functional.mse_loss(self.body(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.97**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--every", type=int, default=4, help="optimizer steps between two checkpoints")
    parser.add_argument("--save-last", choices=["copy", "link", "no"], default="copy")
    parser.add_argument("--save-top-k", type=int, default=1, help="-1 keeps all")
    parser.add_argument("--stateful", action="store_true", help="torchdata's StatefulDataLoader")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--validate", action="store_true", help="with early stopping, patience 1")
    args = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*(num_workers|does not have many workers|LeafSpec|isinstance).*")
    lightning.seed_everything(11, workers=True, verbose=False)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    dataset = torch.utils.data.TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
    if args.stateful:
        from torchdata.stateful_dataloader import StatefulDataLoader as Loader
    else:
        from torch.utils.data import DataLoader as Loader
    checkpoints = ModelCheckpoint(
        dirpath=args.out,
        every_n_train_steps=args.every,
        save_top_k=args.save_top_k,
        save_last={"copy": True, "link": "link", "no": None}[args.save_last],
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_epochs=args.epochs, accumulate_grad_batches=args.accumulate, log_every_n_steps=1,
        callbacks=[checkpoints, *([EarlyStopping("validation", patience=1)] if args.validate else [])],
        default_root_dir=args.out, logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    validation = torch.utils.data.DataLoader(dataset, batch_size=32) if args.validate else None
    trainer.fit(Regression(), Loader(dataset, batch_size=8, shuffle=True), validation, ckpt_path="last")


if __name__ == "__main__":
    main()
