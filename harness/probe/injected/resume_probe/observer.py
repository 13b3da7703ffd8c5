"""What a foreign job does, as records of docs/event-log.md: batches, updates, skips, saves, where it began, and its end.

Responsible for: the order of things within a process. One batch is what lies between two updates (or skipped updates) of the
optimizers; its loss is the sum of what `backward` was called on, as the trainer scales it for accumulation, and without the
scale of a GradScaler. The position after a restart is told by comparing the state before the first batch with the uninterrupted
run's (`golden`). Changes nothing, and a fault of the probe's own never reaches the trainer: it is written down instead.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import multiprocessing
import multiprocessing.util
import os
import platform
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from . import digests
from .found import Found
from .golden import Golden, read_golden
from .log import Log, hex_of
from .saves import Saves

_FACTORS = {"overflow": 1e5, "nan": math.nan, "nonfinite-grad": math.inf, "spike": 1000.0}


def begin() -> None:
    """Attaches the probe to this process."""
    observer = Observer(os.environ["HARNESS_EVENT_LOG"], os.environ["HARNESS_PROBE"], os.environ.get("HARNESS_PROBE_GOLDEN", ""))
    observer.attach()


def _careful(function: Callable[..., Any]) -> Callable[..., Any]:
    """A fault of ours is written down, once, and ends the probe; the trainer goes on."""

    @functools.wraps(function)
    def run(self: Observer, *args: Any, **kwargs: Any) -> Any:
        if self.off:
            return None
        try:
            return function(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is
            self.off = True
            self.log.write("probe-failed", where=function.__name__, error=f"{type(error).__name__}: {error}")
            return None

    return run


class Observer:
    """Of one process."""

    def __init__(self, folder: str, root: str, golden: str) -> None:
        self.log = Log(folder)
        self.off = False
        self._golden_folder = golden
        self._golden = Golden()
        self._saves = Saves(root, self._save_begins)
        self._found: Found | None = None
        self._inside: weakref.ref[torch.nn.Module] | None = None
        self._begun = False
        self._batch = 0
        self._step = 0
        self._losses: list[torch.Tensor] = []
        self._scaled: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._samples: list[int] = []
        self._written = -1  # the batch before which the state was last written down
        self._dirty = False  # a save or load has happened since
        self._saved_at = (0, 0)
        self._rates: list[float] = []
        self._faults: list[dict[str, Any]] = json.loads(os.environ.get("HARNESS_NUMERIC_FAULTS") or "[]")

    def attach(self) -> None:
        """Hooks into torch."""
        register_module_forward_pre_hook(self._before_forward)
        register_module_forward_hook(self._after_forward)
        register_optimizer_step_post_hook(self._after_step)
        self._patch_backward()
        self._patch_scaler()
        if multiprocessing.parent_process() is not None:
            multiprocessing.util.Finalize(None, self._end, exitpriority=-100)
        else:
            atexit.register(self._end)

    # -- the hooks ----------------------------------------------------------------------------------------------------

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if (
            self.off
            or self._inside is not None
            or not torch.is_grad_enabled()
            or not module.training
            or torch.compiler.is_compiling()
        ):
            return
        self._forward(module, args)

    @_careful
    def _forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._found is None or not self._found.trains(module):
            if next(module.parameters(), None) is None:
                return
            if self._found is None or not self._found.optimizers:
                self._found = Found()
            if not self._found.trains(module):
                return
        self._inside = weakref.ref(module)
        taken = digests.rows([args] if args else [self._keywords(module)])
        self._samples += taken
        if not self._losses:
            self._before_batch(taken)

    @staticmethod
    def _keywords(module: torch.nn.Module) -> Any:
        """What the module was called with by name: global hooks are not given it, so it is read off the caller's frame."""
        frame = sys._getframe()
        while frame is not None:
            if frame.f_code.co_name in ("_call_impl", "inner") and frame.f_locals.get("self") is module:
                return frame.f_locals.get("kwargs") or {}
            frame = frame.f_back  # type: ignore[assignment]
        return {}

    def _after_forward(self, module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._inside is not None and self._inside() in (module, None):
            self._inside = None

    @_careful
    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._losses:  # without a backward before it, it updates nothing: DCP calls it so to make the state
            if self._found is None or not self._found.knows(optimizer):
                self._found = Found()
            self._rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
            self._batch_done("STEP", None)

    def _patch_backward(self) -> None:
        real = torch.autograd.backward

        @functools.wraps(real)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            changed = self._seen_loss(tensors)
            return real(tensors if changed is None else changed, *args, **kwargs)

        torch.autograd.backward = backward

    @_careful
    def _seen_loss(self, tensors: Any) -> Any:
        first = tensors if isinstance(tensors, torch.Tensor) else tensors[0] if tensors else None
        if first is None or first.numel() != 1:
            return None
        self._inside = None
        reference, plain = self._scaled.pop(id(first), (None, first))
        self._losses.append((plain if reference is not None and reference() is first else first).detach())
        factor = self._fault_factor()
        return first * factor if factor is not None else None

    def _fault_factor(self) -> float | None:
        for fault in self._faults:
            ranks, first = fault.get("ranks"), int(fault["batch"])
            hit = ranks is None or self.log.rank in ranks
            if hit and first <= self._batch + 1 < first + int(fault.get("times", 1)):
                return _FACTORS[fault["effect"]]
        return None

    def _patch_scaler(self) -> None:
        kind = torch.amp.GradScaler
        scale, update = kind.scale, kind.update

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            if isinstance(result, torch.Tensor) and isinstance(outputs, torch.Tensor) and result is not outputs:
                self._scaled = {id(result): (weakref.ref(result), outputs)}
            return result

        @functools.wraps(update)
        def updated(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if self._losses and scaler.is_enabled():
                self._skipped()
            return update(scaler, *args, **kwargs)

        kind.scale, kind.update = scaled, updated  # type: ignore[method-assign]

    @_careful
    def _skipped(self) -> None:
        self._batch_done("SKIP", "non_finite_grad")

    # -- what is written ----------------------------------------------------------------------------------------------

    def _before_batch(self, taken: list[int]) -> None:
        """Right before the first forward pass of a batch."""
        if not self._begun:
            self._start(taken)
        if self._saves.name and self.log.world_size == 1 and self._saves.quiet():
            self._save_ends()
        if self._written != self._batch and (self._dirty or not self._golden_folder):
            self._state("next")

    def _start(self, taken: list[int]) -> None:
        self._begun = True
        arguments = [str(word) for word in sys.orig_argv]
        version = platform.python_version()
        if not self.log.open():
            self.off = True
            return
        world_size = self.log.world_size
        self.log.write(
            "start", world_size=world_size, pid=os.getpid(), python=version, torch=torch.__version__, arguments=arguments
        )
        found, by = self._digests(), "start"
        if self._golden_folder:
            self._golden = read_golden(self._golden_folder, self.log.rank)
            self._batch, by = self._golden.position(found, taken, self._saves.opened)
            self._step = self._golden.steps.get(self._batch, self._batch)
        opened = self._saves.opened
        name = (self._golden.saves.get(self._batch) or (opened[-1] if opened else None)) if opened or self._batch else None
        self.log.write("resume", step=self._step, checkpoint=name, skipped=[], world_size_saved=None, told_by=by)
        self.log.write("state", moment="load", step=self._step, digests=found)
        self._saved_at = (self._batch, self._step)

    def _digests(self) -> dict[str, str]:
        if self._found is None:
            self._found = Found()
        found = self._found
        return {
            **digests.models(found.roots),
            **digests.optimizers(found.optimizers, found.roots),
            **digests.schedules(found.schedulers, found.optimizers),
            **digests.scalers(found.scalers),
            **digests.generators(),
        }

    def _state(self, moment: str) -> None:
        self._written, self._dirty = self._batch, False
        self.log.write("state", moment=moment, step=self._step, digests=self._digests())

    def _batch_done(self, tag: str, reason: str | None) -> None:
        if not self._begun:
            self._before_batch(self._samples)
        self._batch += 1
        self._step += tag == "STEP"
        losses, self._losses = self._losses, []
        samples, self._samples = self._samples, []
        self._inside = None
        value = hex_of(math.fsum(float(one) for one in losses) if all(map(torch.isfinite, losses)) else float(sum(losses)))
        scalers = self._found.scalers if self._found else []
        scale = hex_of(float(scalers[0].get_scale())) if scalers and scalers[0].is_enabled() else None
        self.log.write(
            "batch",
            batch=self._batch,
            step=self._step,
            epoch=0,
            batch_in_epoch=self._batch,
            tag=tag,
            reason=reason,
            loss=value,
            global_loss=value if self.log.world_size == 1 else None,
            learning_rate=hex_of(self._rates[0]) if self._rates else None,
            scale=scale,
            samples=samples,
        )
        if self._saves.name and self.log.world_size > 1 and self._saves.quiet():
            self._save_ends()

    def _save_begins(self, name: str) -> None:
        if not self._begun or self.off:
            self._saves.ended()
            return
        self._saved_at, self._dirty = (self._batch, self._step), True
        name = self._golden.saves.get(self._batch, name)
        self.log.write("save", moment="begin", step=self._step, batch=self._batch, checkpoint=name)

    def _save_ends(self) -> None:
        """All that was written since `save begin` is complete: every rank has done another batch, or there is one rank."""
        batch, step = self._saved_at
        name = self._saves.ended()
        name = self._golden.saves.get(batch, name)
        self.log.write("save", moment="end", step=step, batch=batch, checkpoint=name)

    @_careful
    def _end(self) -> None:
        if hasattr(sys, "last_type"):
            return  # an exception ends this process
        if not self._begun:
            # Nothing was left to do. A launcher has no optimizer.
            self._found = Found()
            if not self._found.optimizers:
                return
            self._start([])
        if self.off:
            return
        if self._saves.name and self._saves.quiet():
            self._save_ends()
        if self._leaves_early():
            return
        self._state("end")
        self.log.write("end", step=self._step, batches=self._batch)
        if self.log.rank == 0 and not self._golden_folder:
            self._write_imports()

    def _leaves_early(self) -> bool:
        """Whether less is done than the uninterrupted run did, on as many ranks: such as after a SIGTERM that was answered."""
        return bool(self._golden_folder) and self.log.world_size == self._golden.world_size and self._batch < self._golden.last

    def _write_imports(self) -> None:
        """What the job had imported in the end, but for its own files: a preloaded process imports it beforehand."""
        own = os.path.dirname(os.path.abspath(sys.argv[0])) + os.sep  # noqa: PTH100, PTH120
        names = []
        for name, module in list(sys.modules.items()):
            origin = getattr(getattr(module, "__spec__", None), "origin", None)
            ours = name.partition(".")[0] in ("resume_probe", "sitecustomize", "__main__", "__mp_main__")
            if origin and not ours and (not origin.startswith(own) or "site-packages" in origin):
                names.append(name)
        with open(os.path.join(self.log.folder, "imported.json"), "w", encoding="utf-8") as file:  # noqa: PTH118, PTH123
            json.dump(names, file)
