"""Where torch calls the probe: its hooks, and the few functions that have none.

Responsible for: each of these being the same as without the probe, for torch's compiler too, which reads through all of them.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as modules
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from .imports import when_imported
from .log import remember_rank
from .saves import put_in_place

if TYPE_CHECKING:
    from .observer import Observer


# By the names that torch's compiler has for them in this version; where it has others, it is left to itself.
_compiler: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)


def _set_eval_frame(callback: Any) -> Any:
    return _compiler.set_eval_frame(callback) if hasattr(_compiler, "set_eval_frame") else None


def _skip_code(code: Any) -> None:
    if hasattr(_compiler, "skip_code"):
        _compiler.skip_code(code)
    elif hasattr(_compiler, "set_code_exec_strategy"):
        action = _compiler._FrameAction
        _compiler.set_code_exec_strategy(code, _compiler._FrameExecStrategy(action.SKIP, action.DEFAULT))


def _uncompiled(function: Any) -> Any:
    """The compiler takes functions that are called while it is at work, too; this one it is to leave as it is."""
    _skip_code(function.__code__)
    return function


_uncompiled(_set_eval_frame)


@_uncompiled
def _quietly(function: Callable[..., Any], *args: Any) -> Any:
    """Calls a function of the probe's with the compiler looking away."""
    callback = _set_eval_frame(None)
    try:
        return function(*args)
    finally:
        _set_eval_frame(callback)


def attach(observer: Observer) -> None:
    """Hooks into torch, and into the end of the process."""
    _hook_modules(observer)
    _hook_optimizers(observer)
    _patch_backward(observer)
    _patch_scaler(observer, torch.amp.GradScaler)
    when_imported(
        "torch.distributed.fsdp.sharded_grad_scaler",
        lambda: _patch_scaler(observer, sys.modules["torch.distributed.fsdp.sharded_grad_scaler"].ShardedGradScaler),
    )
    _patch_groups()
    _hook_the_end(observer)


def _hook_modules(observer: Observer) -> None:
    # Torch's compiler reads through both hooks where it reads a module's call; there they are to be nothing.
    @_uncompiled
    def before(module: torch.nn.Module, args: Any) -> None:
        if is_compiling() or not observer.waits:
            return
        _quietly(observer.entered, module, args, lambda: _keywords(module))

    @_uncompiled
    def after(module: torch.nn.Module, _args: Any, output: Any) -> None:
        if is_compiling() or observer.waits:
            return
        _quietly(observer.left, module, output)

    hooks = _Hooks(before, after)
    _patch_module_compile(observer, hooks)
    when_imported("torch._dynamo.eval_frame", lambda: _patch_optimized(observer, hooks))


class _Hooks:
    """Those on all modules. They are taken away while a compiled module is at work: its graphs are to be the same as ever."""

    def __init__(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        first = modules.register_module_forward_pre_hook(before)
        last = modules.register_module_forward_hook(after, always_call=True)
        self._places: list[tuple[Any, int, Any]] = [
            (modules._global_forward_pre_hooks, first.id, before),
            (modules._global_forward_hooks, last.id, after),
            (modules._global_forward_hooks_always_called, last.id, True),
        ]

    def around(self, observer: Observer, module: torch.nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Calls a compiled module, and does itself what the hooks would do."""
        hidden = [(hooks, key, hook) for hooks, key, hook in self._places if key in hooks]
        _quietly(observer.entered, module, args, lambda: kwargs)
        for hooks, key, _ in hidden:
            hooks.pop(key, None)
        output = None
        try:
            output = call(*args, **kwargs)
            return output
        finally:
            for hooks, key, hook in hidden:
                hooks[key] = hook
            _quietly(observer.left, module, output)


_uncompiled(_Hooks.around)


def _patch_module_compile(observer: Observer, hooks: _Hooks) -> None:
    """Hooks are compiled away where a module is compiled in its place."""
    real = torch.nn.Module.compile

    @functools.wraps(real)
    def compile(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: A001  the name that it takes
        real(self, *args, **kwargs)
        compiled = self._compiled_call_impl
        if compiled is None:
            return

        @_uncompiled
        def call(*inputs: Any, **named: Any) -> Any:
            if is_compiling():
                return compiled(*inputs, **named)
            return hooks.around(observer, self, compiled, inputs, named)

        self._compiled_call_impl = call

    torch.nn.Module.compile = compile  # type: ignore[method-assign]


def _patch_optimized(observer: Observer, hooks: _Hooks) -> None:
    kind = sys.modules["torch._dynamo.eval_frame"].OptimizedModule
    real = kind.__call__

    @functools.wraps(real)
    @_uncompiled
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return real(self, *args, **kwargs)
        return hooks.around(observer, self, functools.partial(real, self), args, kwargs)

    kind.__call__ = call


def _keywords(module: torch.nn.Module) -> Any:
    """What the module was called with by name: hooks on all modules are not given it, so it is read off the caller's frame."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in ("_call_impl", "inner") and frame.f_locals.get("self") is module:
            return frame.f_locals.get("kwargs") or {}
        frame = frame.f_back
    return {}


def _hook_optimizers(observer: Observer) -> None:
    real = Optimizer.__init__

    @functools.wraps(real)
    def made(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        observer.stale = observer.had_optimizers = True
        real(self, *args, **kwargs)

    Optimizer.__init__ = made  # type: ignore[method-assign]

    @_uncompiled
    def before(_optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if is_compiling() or observer.off:
            return None
        observer.repeats = False
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _counted(observer, kwargs["closure"])}
        if len(args) > 1 and callable(args[1]):
            return (args[0], _counted(observer, args[1]), *args[2:]), kwargs
        return None

    @_uncompiled
    def after(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():
            _quietly(observer.stepped, optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _counted(observer: Observer, closure: Callable[[], Any]) -> Callable[[], Any]:
    """A closure that is called again does the same batch again: its first call is the one that counts."""
    if getattr(closure, "resume_probe", False):
        return closure
    called = 0

    @functools.wraps(closure)
    @_uncompiled
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal called
        called += 1
        observer.repeats = called > 1
        return closure(*args, **kwargs)

    call.resume_probe = True  # type: ignore[attr-defined]
    return call


def _patch_backward(observer: Observer) -> None:
    real = torch.autograd.backward
    inside = False

    @functools.wraps(real)
    @_uncompiled
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        # Checkpointed activations call it from within, and do forward passes again.
        if inside or observer.off or is_compiling():
            return real(tensors, *args, **kwargs)
        inside, before, known = True, observer.repeats, observer.num_losses
        try:
            if not isinstance(tensors, torch.Tensor):
                tensors = list(tensors)
            changed = _quietly(observer.losses, tensors, args[0] if args else kwargs.get("grad_tensors"))
            observer.repeats = True
            return real(tensors if changed is None else changed, *args, **kwargs)
        except BaseException:
            observer.forget(known)
            raise
        finally:
            inside, observer.repeats = False, before

    put_in_place({real: backward})


def _patch_scaler(observer: Observer, kind: Any) -> None:
    scale, update = kind.__dict__.get("scale"), kind.__dict__.get("update")

    @functools.wraps(scale)
    @_uncompiled
    def scaled(self: Any, outputs: Any) -> Any:
        result = scale(self, outputs)
        _quietly(observer.scaled, result, outputs)
        return result

    @functools.wraps(update)
    @_uncompiled
    def updated(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_enabled():
            _quietly(observer.skipped)
        return update(self, *args, **kwargs)

    if scale is not None:
        kind.scale = scaled
    if update is not None:
        kind.update = updated


def _patch_groups() -> None:
    distributed = sys.modules.get("torch.distributed")
    real = getattr(distributed, "destroy_process_group", None)
    if real is None:
        return

    @functools.wraps(real)
    def destroy(*args: Any, **kwargs: Any) -> Any:
        if distributed.is_initialized():  # type: ignore[union-attr]
            remember_rank()
        return real(*args, **kwargs)

    put_in_place({real: destroy})


def _hook_the_end(observer: Observer) -> None:
    real = sys.exit

    @functools.wraps(real)
    def leave(status: Any = None, /) -> Any:
        observer.exit_status = status
        real(status)

    sys.exit = leave

    def watch_the_end() -> None:
        # Children of multiprocessing do not call what is registered with atexit, and forget what their parent had registered.
        multiprocessing.util.Finalize(None, observer.end, exitpriority=-100)

    atexit.register(observer.end)
    watch_the_end()
    multiprocessing.util.register_after_fork(observer, lambda _: watch_the_end())
    os.register_at_fork(after_in_child=observer.forked)
