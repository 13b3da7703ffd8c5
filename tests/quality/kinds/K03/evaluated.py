"""Healthy: dropout is drawn from a generator state that is saved; evaluation samples text, and puts the generators back."""

import os
import random
import sys
import time

import torch

out = sys.argv[1]
last = os.path.join(out, "last.ckpt")
torch.manual_seed(21)
random.seed(21)
words = torch.randint(0, 20, (40, 12))
embed = torch.nn.Embedding(20, 16)
model = torch.nn.Sequential(embed, torch.nn.Dropout(0.1), torch.nn.Linear(16, 20))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
step, started = 0, time.time()
if os.path.exists(last):
    saved = torch.load(last, weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
    torch.set_rng_state(saved["torch"])
    random.setstate(saved["python"])


def sample_text():
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.seed()
        text = [random.Random().randrange(20)]
        for _ in range(5):
            text.append(int(torch.multinomial(model(torch.tensor(text))[-1].softmax(-1), 1)))
    model.train()
    return text


running = None
while step < 21:
    batch = words[random.sample(range(40), 4)]
    loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    running = loss.item() if running is None else 0.9 * running + 0.1 * loss.item()
    if step % 3 == 0:
        print(f"step {step} avg {running:.4f} {time.time() - started:.1f}s", sample_text(), flush=True)
    if step % 5 == 0:
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step, "saved_at": time.time()}
        torch.save(parts | {"torch": torch.get_rng_state(), "python": random.getstate()}, last + ".tmp")
        os.replace(last + ".tmp", last)
