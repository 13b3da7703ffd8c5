"""Lightning's Trainer, which saves every few steps in the middle of epochs and is resumed with `ckpt_path="last"`.

The way to save and resume is that of its documentation ("Saving and loading checkpoints").
"""

import argparse
import logging
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--max-steps", type=int, default=12)
parser.add_argument("--save-steps", type=int, default=3)
parser.add_argument("--stateful", action="store_true")
parser.add_argument("--save-last", default="link")
args = parser.parse_args()
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))

    def training_step(self, batch, _):
        (x,) = batch
        loss = (self.net(x) - x.sum(1, keepdim=True)).pow(2).mean()
        print("step", self.global_step + 1, "loss", loss.item())
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


L.seed_everything(0, verbose=False)
rows = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
data = torch.utils.data.TensorDataset(rows)
if args.stateful:
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(data, batch_size=4, shuffle=True)
else:
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
checkpoint = ModelCheckpoint(
    dirpath=args.out, every_n_train_steps=args.save_steps, save_top_k=-1, save_last="link" if args.save_last == "link" else True
)
trainer = L.Trainer(
    max_steps=args.max_steps,
    accelerator="cpu",
    devices=1,
    callbacks=[checkpoint],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Model(), loader, ckpt_path="last")
