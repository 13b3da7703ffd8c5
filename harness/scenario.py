"""What a person asks for: a workload, the ranks of each attempt, the faults, and what must hold.

Responsible for: the data, and for finding everything that is wrong with it before anything starts.
Not responsible for: how it is carried out (`harness.plan`, `harness.supervisor`).
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError, WrapValidator

from harness import grammar
from harness.errors import UsageError
from harness.fault import (
    DamageFault,
    DiskFault,
    Fault,
    HoldFault,
    NumericFault,
    PowerCutFault,
    SignalFault,
    StepPoint,
)
from harness.reference.defects import check_defects

Format = Literal["single", "sharded", "dcp", "dcp-async", "safetensors"]
FORMATS: tuple[Format, ...] = ("single", "sharded", "dcp", "dcp-async", "safetensors")
Launch = Literal["warm", "cold", "torchrun"]
MAX_RANKS = 64
FIXED_TOLERANCE = 1e-4
MAX_DEADLINE_S = 604_800  # a week
_MAX_NAME_BYTES = 200
_MAX_BATCHES = 100_000
_MAX_SAMPLES = 10_000_000  # every rank makes all samples of an epoch before it trains
# Over a change of ranks, sums are grouped otherwise and rounded to the 8 bits of bfloat16: losses were seen to differ by 3.5e-4.
_LEAST_TOLERANCE_OF_BF16 = 1e-3


def _writable(text: str) -> str:
    # Lone surrogates (a path that is not UTF-8) cannot be written to the replay file, NUL cannot be passed to a process.
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("expected text that can be written as UTF-8 and holds no NUL")
    return text


def _one_folder(name: str) -> str:
    # A case's folder has its name: below --out, beside the cache of baselines, with a number behind it where it is taken.
    if (
        name in ("", ".", "..", "baselines")
        or "/" in name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > _MAX_NAME_BYTES
    ):
        raise ValueError(
            f"expected a name for a folder: 1 to {_MAX_NAME_BYTES} printable characters (bytes in UTF-8), no slash, and not "
            "., .. or baselines"
        )
    return name


if TYPE_CHECKING:
    Tolerance = float | Literal["auto"]
else:
    # One word beside the numbers; not a union, which would say each mistake twice.
    Tolerance = Annotated[
        float,
        Field(ge=0, lt=1),
        WrapValidator(lambda value, handler: value if value == "auto" else handler(value)),
        PlainSerializer(lambda value: value, return_type=float | str),
    ]

Text = Annotated[str, AfterValidator(_writable)]
Name = Annotated[Text, AfterValidator(_one_folder)]


class _Model(BaseModel):
    # Strict: a replay file is written by people too, and "true" for a number is a mistake, not a value.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Reference(_Model):
    """The project's own reference trainer (`harness/reference/`) with its settings; a field is its option of that name."""

    kind: Literal["reference"] = "reference"
    format: Format = "single"
    steps: int = Field(24, ge=1, le=_MAX_BATCHES)
    save_every: int = Field(4, ge=1, le=_MAX_BATCHES)
    keep_last: int = Field(3, ge=1, le=_MAX_BATCHES)
    batches_per_epoch: int = Field(12, ge=1, le=_MAX_BATCHES)
    global_batch: int = Field(12, ge=1, le=4096)
    dropout: float = Field(0.1, ge=0, le=0.99)
    rng_scope: Literal["rank", "global"] = "rank"
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    learning_rate: float = Field(2e-3, gt=0, le=1e3)
    on_save_error: Literal["fail", "continue"] = "fail"
    reshard: bool = False
    collective_timeout_s: float = Field(30.0, ge=0.1, le=86_400)
    width: int = Field(32, ge=8, le=8192, multiple_of=4)
    model: Literal["gpt", "mlp"] = "gpt"
    parallelism: Literal["ddp", "zero1", "fsdp2"] = "ddp"
    sampler: Literal["distributed", "random"] = "distributed"
    workers: int = Field(0, ge=0, le=16)
    accumulate: int = Field(1, ge=1, le=4096)
    recompute: Literal["none", "full", "selective"] = "none"
    ema: float = Field(0.0, ge=0, le=0.9999)
    noise: float = Field(0.1, ge=0, le=1e3)
    activation_limit: int = Field(0, ge=0, le=2**50)
    on_loss_jump: Literal["ignore", "rollback"] = "ignore"
    defects: tuple[Text, ...] = ()

    def arguments(self, seed: int) -> list[str]:
        """The trainer's command line; `{ckpt}` and `{init_method}` are filled in at launch."""
        options = {name: getattr(self, name) for name in type(self).model_fields if name not in ("kind", "reshard", "defects")}
        words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        words += ["--seed", str(seed), "--out", "{ckpt}", "--init-method", "{init_method}"]
        words += ["--reshard"] if self.reshard else []
        return words + [word for defect in self.defects for word in ("--defect", defect)]

    @property
    def saves_in_background(self) -> bool:
        """Whether training goes on while a checkpoint is written, which is committed some batches later."""
        return self.format == "dcp-async"

    @property
    def commit_pattern(self) -> str:
        """The path whose rename commits a checkpoint."""
        return "step-*.pt" if self.format == "single" else "step-*/manifest.json"


class Command(_Model):
    """Any command that trains; it writes the event log (docs/event-log.md) by itself, or `probe` is set.

    `{ckpt}`, `{world_size}`, `{init_method}` and `{python}` in a word are filled in at launch. The command is started
    once per attempt and makes its own ranks (as `torchrun` does), in `directory` (absolute), or else in the attempt's own.
    With `probe`, every Python process of it is watched from inside (`harness.probe.injected`) and writes the log without
    knowing; a command that writes its log itself may have it too. `python` is the interpreter that stands for `{python}`, the
    harness's own where there is none; `resume_python` stands for it in restarts, so that one version saves and another resumes.
    `control_command` does the same work otherwise (without saving, without recomputation) and must give the same numbers. With
    `loss_log` the batches are read from what the command writes to that file (`-`: to its standard output and error), line by line
    with `loss_regex`, which has the groups `step` and `loss`.
    """

    kind: Literal["command"] = "command"
    command: tuple[Text, ...] = Field(min_length=1)
    resume_command: tuple[Text, ...] | None = Field(None, min_length=1)
    control_command: tuple[Text, ...] | None = Field(None, min_length=1)
    directory: Text | None = Field(None, pattern="^/")
    probe: bool = False
    steps: int | None = Field(None, ge=1, le=10**9)
    save_every: int | None = Field(None, ge=1, le=10**9)
    python: Text | None = Field(None, min_length=1)
    resume_python: Text | None = Field(None, min_length=1)
    loss_log: Text | None = Field(None, min_length=1)
    loss_regex: Text | None = Field(None, min_length=1)

    @property
    def commit_pattern(self) -> str | None:
        """Unknown for a foreign trainer: only `save()` returning says that a checkpoint is committed."""
        return None


Workload = Reference | Command


class Scenario(_Model):
    """One case.

    Attributes:
        name: how reports call it, and its run directory.
        workload: what trains.
        world_sizes: number of ranks of attempt 0, 1, …; the last one repeats.
        faults: sentences of `harness.grammar`, in canonical form.
        expect: `resumes` (training is completed and nothing is lost), `refuses` (the last attempt must end with a
            clear refusal, since nothing valid is left or the shapes cannot match), or `resumes-or-refuses` (a restart may
            fail; what it does instead is exact).
        seed: of the training job.
        tolerance: largest allowed difference of the loss at any step, absolute; or `auto`: so many times what one flipped last
            bit of every weight makes of it (`harness.oracle.noise`).
        launch: how ranks are started.
        deadline_s: seconds that one attempt may take.
        max_attempts: the harness stops restarting after so many launches.
        compare_with: the uninterrupted run: `same`, the very job; `unsaved`, the reference trainer that never saves; `control`,
            the command's `control_command`; or `plain`, the reference trainer without planted defects, accumulation, recompute
            or memory limit. All of them must give the same numbers, the last one within the tolerance.
    """

    name: Name = "case"
    workload: Reference | Command = Field(discriminator="kind")
    world_sizes: tuple[int, ...] = Field((2,), min_length=1)
    faults: tuple[Text, ...] = ()
    expect: Literal["resumes", "refuses", "resumes-or-refuses"] = "resumes"
    seed: int = Field(0, ge=0, le=2**31)
    tolerance: Tolerance = FIXED_TOLERANCE
    launch: Launch = "warm"
    deadline_s: float = Field(90.0, gt=0, le=MAX_DEADLINE_S)
    max_attempts: int = Field(3, ge=1, le=100)
    compare_with: Literal["same", "plain", "unsaved", "control"] = "same"

    @classmethod
    def build(cls, data: Mapping[str, Any]) -> Scenario:
        """Checks everything and makes the scenario.

        Raises:
            UsageError: with every problem found: unknown words, impossible ranks, values out of range.
        """
        __tracebackhide__ = True
        return _built(data)

    def parsed_faults(self) -> tuple[Fault, ...]:
        """The faults as data."""
        return grammar.parse_all(self.faults)

    def world_size(self, attempt: int) -> int:
        """Number of ranks of that attempt."""
        return self.world_sizes[min(attempt, len(self.world_sizes) - 1)]

    @property
    def same_world_size(self) -> bool:
        """Whether every attempt has the same number of ranks, so that the CPU must give equal bits."""
        return len(set(self.world_sizes)) == 1


def _built(data: Mapping[str, Any], words: Collection[str] = ()) -> Scenario:
    """The scenario of that data; `words` are what a caller may have meant by a word that nobody knows."""
    __tracebackhide__ = True
    if not isinstance(data, Mapping):
        raise UsageError([f"scenario: found {_short(data)}; expected a mapping of field names to values, such as a dict"])
    problems: list[str] = []
    parsed: list[Fault] = []
    texts = _texts(data.get("faults", ()))
    for text in texts or ():
        try:
            parsed.append(grammar.parse(text))
        except UsageError as error:
            problems.extend(error.problems)
    model = None
    try:
        # Canonical spelling, so that equal scenarios are equal data (the baseline cache and replay files rely on it).
        canonical = {"faults": tuple(map(str, parsed))} if texts is not None and not problems else {}
        model = Scenario.model_validate({**data, **canonical})
    except ValidationError as error:
        problems.extend(describe_validation(error, words))
    problems.extend(_impossible(parsed, data))
    if problems or model is None:
        raise UsageError(problems)
    return model


def job(
    format: Format = "single",
    *,
    ranks: int | tuple[int, ...] = 2,
    faults: tuple[str, ...] | list[str] | str = (),
    **settings: Any,
) -> Scenario:
    """A scenario of the reference trainer, in one call.

    Args:
        format: checkpoint format.
        ranks: number of ranks, or one number per attempt.
        faults: one sentence or several.
        settings: fields of `Scenario` (`expect`, `seed`, …) or of `Reference` (`steps`, `precision`, …).

    Raises:
        UsageError: with every problem found.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test, not the ones below
    defects = settings.get("defects")
    if isinstance(defects, (str, list)):
        settings["defects"] = (defects,) if isinstance(defects, str) else tuple(defects)
    own = {key: settings.pop(key) for key in list(settings) if key in Scenario.model_fields}
    return _built(
        {
            "workload": {"kind": "reference", "format": format, **settings},
            "world_sizes": tuple(ranks) if isinstance(ranks, (tuple, list)) else (ranks,),
            "faults": tuple(faults) if isinstance(faults, (tuple, list)) else (faults,),
            **own,
        },
        words=("ranks", *Scenario.model_fields, *Reference.model_fields),
    )


def describe_validation(error: ValidationError, words: Collection[str] = ()) -> list[str]:
    """One sentence per problem that pydantic found, in the words of the file or call.

    Args:
        error: what it found.
        words: what may have been meant by a word that nobody knows; () for the fields of the table that it stands in.
    """
    sentences = []
    for item in error.errors():
        if item["type"] == "too_short" and item["input"]:
            continue  # said of a tuple whose items are all wrong, and each of them is a problem already
        # pydantic puts the kind of workload behind "workload"; the file has no such table.
        kind_at = 1 if item["loc"][:1] == ("workload",) else None
        where = ".".join(str(part) for n, part in enumerate(item["loc"]) if n != kind_at)
        text = item["msg"].removeprefix("Value error, ")
        found = "" if item["type"] == "missing" else f"; found {_short(item['input'])}"
        hint = _meant(item["loc"], words) if item["type"] == "extra_forbidden" else ""
        sentences.append(f"{where or 'scenario'}: {text[0].lower()}{text[1:]}{found}{hint}")
    return sentences


def _meant(place: tuple[int | str, ...], words: Collection[str]) -> str:
    """The known word that an unknown one is most like, as a question; "" where there is none."""
    fields: Collection[str] = (Command if "command" in place[1:2] else Reference).model_fields
    known = words or (fields if place[0] == "workload" else Scenario.model_fields)
    near = difflib.get_close_matches(str(place[-1]), sorted({*known} - {"kind"}), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python does not write whole numbers of more than 4300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:120]}… ({len(text)} characters)"


def _texts(value: Any) -> list[str] | None:
    # None for anything else: then the model refuses the value as it was given, instead of seeing only what could be read.
    return list(value) if isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value) else None


def _impossible(parsed: list[Fault], data: Mapping[str, Any]) -> list[str]:
    """Problems between fields; `data` may be wrong in any other way."""
    sizes = data.get("world_sizes", (2,))
    if not (isinstance(sizes, (list, tuple)) and sizes and all(type(n) is int for n in sizes)):
        return []
    problems = [
        f"world_sizes: {_short(n)} is not a number of ranks; expected 1 to {MAX_RANKS}" for n in sizes if not 1 <= n <= MAX_RANKS
    ]
    attempts = data.get("max_attempts", 3)
    for fault in parsed:
        attempt = getattr(fault, "attempt", 0)
        if type(attempts) is int and attempt >= attempts >= 1:
            limits = f"max_attempts is {attempts}, so expected 0 to {attempts - 1}"
            problems.append(f"fault '{fault}': attempt {attempt} never happens; {limits}")
        size = max(sizes) if isinstance(fault, NumericFault) else sizes[min(attempt, len(sizes) - 1)]
        for rank in _ranks(fault):
            if rank >= size >= 1:
                limits = f"attempt {attempt} has {size} rank{'s' * (size != 1)}, so expected 0 to {size - 1}"
                problems.append(f"fault '{fault}': there is no rank {rank}; {limits}")
    problems += _crowded(parsed)
    workload = data.get("workload")
    if isinstance(workload, _Model):
        workload = workload.model_dump()
    if not isinstance(workload, Mapping):
        return problems
    if workload.get("kind") == "reference":
        problems += _no_micro_batch(workload, parsed)
        problems += _reference_problems(workload, sizes) + _rounding(workload, sizes, data.get("tolerance", FIXED_TOLERANCE))
    problems += _compared(workload, data.get("compare_with", "same"))
    if workload.get("kind") == "command" and data.get("tolerance") == "auto" and not workload.get("probe"):
        problems.append(
            "tolerance: auto changes the last bit of the weights from inside, so the command must be watched; expected "
            "probe=True in it (no --loss-log), or a number such as 1e-4"
        )
    return problems + _after_the_end(workload, parsed)


def _compared(workload: Mapping[str, Any], with_what: Any) -> list[str]:
    """What a job of this kind cannot be compared with."""
    if with_what in ("plain", "unsaved") and workload.get("kind") == "command":
        return [f"compare_with: {with_what} is for the reference trainer; expected control, and a control_command"]
    if with_what == "control" and (workload.get("kind") != "command" or not workload.get("control_command")):
        return ["compare_with: control needs a command with a control_command; expected one that does the same work otherwise"]
    return []


def _crowded(parsed: list[Fault]) -> list[str]:
    """Faults of which an attempt can have one only."""
    problems = []
    for attempt in sorted({fault.attempt for fault in parsed if isinstance(fault, DiskFault)}):
        disks = [str(fault) for fault in parsed if isinstance(fault, DiskFault) and fault.attempt == attempt]
        if len(disks) > 1:
            problems.append(f"attempt {attempt} has {len(disks)} disks ({', '.join(disks)}); expected at most one")
    for attempt in sorted({fault.attempt for fault in parsed if isinstance(fault, PowerCutFault)}):
        cuts = [fault for fault in parsed if isinstance(fault, PowerCutFault) and fault.attempt == attempt]
        full = any(isinstance(fault, DiskFault) and fault.attempt == attempt for fault in parsed)
        if len(cuts) > 1:
            problems.append(f"attempt {attempt} has {len(cuts)} power cuts; expected at most one, since nothing runs after it")
        if full and any(cut.filesystem for cut in cuts):
            problems.append(f"attempt {attempt} has a small disk and a real file system for its power cut; expected one of them")
    return problems


def _reference_problems(workload: Mapping[str, Any], sizes: Any) -> list[str]:
    problems = []
    batch = workload.get("global_batch", 12)
    pieces = workload.get("accumulate", 1)
    if type(batch) is int and 1 <= batch <= 4096 and type(pieces) is int and 1 <= pieces <= 4096:
        micro = "" if pieces == 1 else f" in {pieces} micro-batches"
        odd = [n for n in sizes if 1 <= n <= MAX_RANKS and batch % (n * pieces)]
        problems += [
            f"world_sizes: {n} ranks cannot share a global batch of {batch}{micro}; expected a divisor of it" for n in odd
        ]
    if workload.get("model") == "mlp" and len(set(sizes)) > 1:
        problems.append("world_sizes: each rank's BatchNorm sees its own samples, so the model mlp needs one number of ranks")
    if workload.get("model") == "mlp" and workload.get("recompute", "none") != "none":
        problems.append("recompute: the model mlp has no layers to compute again; expected none")
    defects, chosen = workload.get("defects", ()), workload.get("format", "single")
    if isinstance(defects, (list, tuple)) and isinstance(chosen, str):
        problems += check_defects([str(name) for name in defects], chosen)
    length = workload.get("batches_per_epoch", 12)
    if type(batch) is int and type(length) is int and batch <= 4096 and length <= _MAX_BATCHES and batch * length > _MAX_SAMPLES:
        found = f"{length} batches of {batch} samples, which are {batch * length} in an epoch"
        problems.append(f"batches_per_epoch: {found}; expected at most {_MAX_SAMPLES}")
    return problems


def _no_micro_batch(workload: Mapping[str, Any], parsed: list[Fault]) -> list[str]:
    """Parts of a batch that it does not have."""
    pieces = workload.get("accumulate", 1)
    bad = [
        fault for fault in parsed if isinstance(fault, NumericFault) and type(pieces) is int and fault.micro_batch > pieces >= 1
    ]
    limits = f"a batch has {pieces} (accumulate), so expected 1 to {pieces}" if bad else ""
    return [f"fault '{fault}': there is no micro-batch {fault.micro_batch}; {limits}" for fault in bad]


def _rounding(workload: Mapping[str, Any], sizes: Any, tolerance: Any) -> list[str]:
    """Where a healthy job differs from itself by more than is allowed, the verdict would be a false alarm."""
    told = isinstance(tolerance, (int, float)) and tolerance < _LEAST_TOLERANCE_OF_BF16
    if workload.get("precision") != "bf16" or len(set(sizes)) == 1 or not told:
        return []
    counts = " and ".join(str(n) for n in dict.fromkeys(sizes))
    return [
        f"precision: bf16 on {counts} ranks groups its sums otherwise and rounds them to 8 bits, so that the losses of a job in "
        f"which nothing is wrong differ by up to 3.5e-4; found tolerance={tolerance:g}; expected tolerance=1e-3 or more, one "
        "number of ranks, or precision fp32"
    ]


def _after_the_end(workload: Mapping[str, Any], parsed: list[Fault]) -> list[str]:
    """Faults after the last batch; a foreign job may have more of them on other ranks, but its uninterrupted run has not."""
    reference = workload.get("kind") == "reference"
    steps = workload.get("steps", 24 if reference else None)
    problems = []
    for fault in parsed if type(steps) is int and 1 <= steps <= 10**9 else ():
        first = last = fault.batch if isinstance(fault, NumericFault) else 0
        if isinstance(fault, NumericFault):
            last = first + fault.times - 1
        elif reference and isinstance(fault, (SignalFault, PowerCutFault)) and isinstance(fault.point, StepPoint):
            first = last = fault.point.step
        if first > steps:
            problems.append(f"fault '{fault}': the job ends at {steps}, so this never happens; expected 1 to {steps}")
        elif last > steps:
            never = f"so batches {steps + 1} to {last} never happen"
            problems.append(f"fault '{fault}': the job ends at {steps}, {never}; expected times 1 to {steps - first + 1}")
    return problems


def _ranks(fault: Fault) -> tuple[int, ...]:
    if isinstance(fault, (DiskFault, DamageFault)):
        return ()
    if isinstance(fault, HoldFault):
        return (*fault.who.ranks, fault.until_rank)
    trigger = fault.trigger if isinstance(fault, (SignalFault, PowerCutFault)) else None
    return fault.who.ranks + (() if trigger is None else (trigger,))
