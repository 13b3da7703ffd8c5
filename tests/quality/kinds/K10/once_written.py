"""One `os.write` for the whole file: how much of it has landed is not looked at."""

import io
import os
import sys

import torch

out = sys.argv[1]
whole = "--whole" in sys.argv
path = os.path.join(out, "snapshot.bin")

torch.manual_seed(4)
model = torch.nn.Bilinear(4, 4, 2)
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
first = 0
if os.path.isfile(path):
    snapshot = torch.load(path, map_location="cpu")
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    first = snapshot["epoch"]

for epoch in range(first, 12):
    generator = torch.Generator().manual_seed(epoch)
    a, b = torch.randn(2, 5, 4, generator=generator)
    loss = (model(a, b) - 1).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 4 == 3:
        buffer = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, buffer)
        data = buffer.getvalue()
        descriptor = os.open(path + ".part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        landed = os.write(descriptor, data)
        while whole and landed < len(data):
            landed += os.write(descriptor, data[landed:])
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(path + ".part", path)
