"""From the words of `harness check` and `harness trace` to what is asked for, with every problem found.

Responsible for: the job that is checked by default, and what can be wrong with an option. Starts and writes nothing.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.check import Request
from harness.errors import UsageError
from harness.launch.understood import keeps_out
from harness.scenario import FORMATS, Command, Reference, Scenario
from harness.shard import Shard

# The smallest job that shows everything: three saves (one stands before the attacked one, one comes after it), in the second of
# two epochs, with a rotation after each; a small model, whose files are still several writes.
REFERENCE = {"steps": 3, "save_every": 1, "keep_last": 1, "batches_per_epoch": 2, "width": 16}
# As torchrun and accelerate are told.
_NUMBER_OF_RANKS = re.compile(r"--(?:nproc|num)[-_](?:per[-_]node|processes)[= ]([1-9][0-9]{0,2})(?= |$)")
COMMAND_BUDGET = "5m"
# "step 10: loss 2.31", "iter 1,000 | loss=2.31e+00", "{'step': 3, 'loss': 0.5}", "Epoch [1/2], Step [3/10], Loss: 0.5".
LOSS_REGEX = (
    r"(?i)(?:\bepoch\b\W{0,4}(?P<epoch>\d+).*?)?\b(?:step|iter|iteration)\b\W{0,4}(?P<step>\d+(?:,\d{3})*).*?"
    r"\bloss\b\W{0,4}?(?P<loss>[-+]?(?:\d+(?:\.\d*)?(?:e[-+]?\d+)?|nan|inf))"
)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_request(options: Mapping[str, Any], problems: Sequence[str] = ()) -> Request:
    """What `harness check` is asked for.

    Args:
        options: as the command line names them, as texts.
        problems: what is wrong already.

    Raises:
        UsageError: with every problem found.
    """
    found = list(problems)
    scenario = job_of("check", options, found)
    command = isinstance(scenario.workload, Command)
    budget, limit = options["budget"], options["crash_points"]
    if budget is None and options["command"]:
        budget = COMMAND_BUDGET
    request = Request(
        scenario=scenario,
        save=_save(options["save"], command, found),
        limit=None if limit in (None, "all") else whole(limit, "--crash-points", "all, or a number from 1", found),
        power=options["power_cut"],
        filesystem=options["filesystem"],
        recovery=options["recovery"],
        interleave=options["interleavings"],
        damage=options["damage"],
        errors=options["errors"],
        launch=options["launch"],
        jobs=default_jobs() if options["jobs"] is None else whole(options["jobs"], "--jobs", "a number from 1", found),
        budget_s=None if budget is None else duration(budget, found),
        world_sizes=_sizes(options, found),
        shard=_shard(options.get("shard"), found),
    )
    if found:
        raise UsageError(found)
    return request


def parse_trace_request(options: Mapping[str, Any], problems: Sequence[str] = ()) -> Scenario:
    """The job that `harness trace` is asked for. Raises: UsageError with every problem found."""
    found = list(problems)
    scenario = job_of("trace", {**options, "seed": "0"}, found)
    if found:
        raise UsageError(found)
    return scenario


def parse_command(words: Sequence[str]) -> Scenario:
    """The job that a command line is, as `harness check -- WORDS` takes it. Raises: UsageError with every problem found."""
    problems: list[str] = []
    options = {"command": tuple(words), "format": None, "world_size": None, "steps": None, "seed": "0", "defect": ()}
    scenario = job_of("check", options, problems)
    if problems:
        raise UsageError(problems)
    return scenario


def _save(text: str | None, command: bool, problems: list[str]) -> int | None:
    if text is None:
        return None if command else 2
    return 0 if text == "all" else whole(text, "--save", "a number from 1, or all", problems)


def _shard(text: str | None, problems: list[str]) -> Shard | None:
    try:
        return None if text is None else Shard.parse(text)
    except UsageError as error:
        problems += error.problems
        return None


def _sizes(options: Mapping[str, Any], problems: list[str]) -> tuple[int, ...] | None:
    """Other numbers of ranks, which the command must be told."""
    text = options["world_sizes"]
    if text is None:
        return None
    if not any("{world_size}" in word for word in options["command"]):
        problems.append(
            f"--world-sizes {text}: the command has no {{world_size}}, so it cannot be told; expected it in the command"
        )
    return tuple(whole(one.strip(), "--world-sizes", "numbers of ranks such as 1,4", problems) for one in text.split(","))


_BROKEN = ("true",)  # stands for words that cannot be read; that has been said


def _words(text: str, name: str, problems: list[str]) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        problems.append(f"{name} {text!r}: {error}; expected words as a shell reads them")
        return _BROKEN
    if not words:
        problems.append(f"{name} is empty; expected a command")
    return words


def _interpreter(text: str, options: Mapping[str, Any], problems: list[str], option: str = "--python") -> str:
    if "{python}" not in " ".join([*options["command"], options.get("resume_command") or ""]):
        problems.append(
            f"{option} {text}: the command has no {{python}}, so it would run in another interpreter; expected {{python}} where "
            "the command says which one it is: -- {python} train.py … or -- {python} -m torch.distributed.run …"
        )
    # Whether the command says {python} or not: a mistake that is not said would be met later.
    if shutil.which(text) is None:
        problems.append(f"{option} {text!r}: does not exist or cannot be executed; expected an interpreter or its path")
    return text


def _tolerance(text: str | None, problems: list[str]) -> dict[str, float | str]:
    if text is None or text == "auto":
        return {} if text is None else {"tolerance": text}
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        problems.append(f"--tolerance {text}: expected a difference of losses from 0 to below 1, such as 1e-4")
        return {}
    return {"tolerance": value}


def default_jobs() -> int:
    """Cases at a time, where nobody says."""
    # A resume waits now and then, so one more than there are processors keeps them busy.
    return len(os.sched_getaffinity(0)) + 1


def job_of(verb: str, options: Mapping[str, Any], problems: list[str]) -> Scenario:
    """The job that a command line names.

    Args:
        verb: the command of the harness, which names the job and its cases.
        options: as the command line names them, as texts; `reference` and `settings`, where they are there, are the settings of
            the reference trainer that hold unless others are asked for, and those that are.
        problems: every problem that is found is added here; the result is then of no use.
    """
    ranks = _ranks(options, problems)
    steps = None if options["steps"] is None else whole(options["steps"], "--steps", "a number of batches from 1", problems)
    seed = whole(options["seed"], "--seed", "a whole number", problems, least=0, most=2**31)
    workload: dict[str, Any] | Command
    command, format_name = tuple(options["command"]), options["format"]
    if bool(command) == (format_name is not None):
        found = "both" if command else "neither"
        problems.append(f"found {found} of --reference FORMAT and a command; expected one: --reference sharded, or -- COMMAND …")
        workload = {"kind": "reference"}
    elif command:
        workload = _foreign(verb, command, options, steps, problems)
        if options["defect"]:
            problems.append("--defect plants a defect in the reference trainer; expected --reference FORMAT with it")
    else:
        if format_name not in FORMATS:
            problems.append(f"--reference {format_name}: unknown format; expected one of {', '.join(FORMATS)}")
        workload = {
            "kind": "reference",
            "format": format_name,
            "defects": options["defect"],
            **options.get("reference", REFERENCE),
        }
        workload |= options.get("settings", {})
        workload |= {"steps": steps} if steps else {}
    tolerance = _tolerance(options.get("tolerance"), problems)
    if not command:
        given = [
            name
            for name in ("resume_command", "control_command", "python", "resume_python", "world_sizes", "loss_log", "loss_regex")
            if options.get(name) is not None
        ]
        problems += [f"--{name.replace('_', '-')} is for a command; expected -- COMMAND … with it" for name in given]
    name = f"{verb}-{format_name or _short(command)}"
    if problems:  # what follows would only say the same again
        return Scenario.model_construct(name=name, workload=Reference())
    launch = "cold" if command else "warm"
    facts = {"name": name, "workload": workload, "world_sizes": (ranks,), "seed": seed, "launch": launch} | tolerance
    return Scenario.build(facts)


def _foreign(
    verb: str, command: Sequence[str], options: Mapping[str, Any], steps: int | None, problems: list[str]
) -> dict[str, Any]:
    """A user's command as a workload."""
    # As for any program that is given to another one to run: where the user stands.
    workload: dict[str, Any] = {"kind": "command", "command": command, "directory": str(Path.cwd()), "probe": True}
    workload |= {"steps": steps} if steps else {}
    if options.get("python") is not None:
        workload["python"] = _interpreter(options["python"], options, problems)
    if options.get("resume_python") is not None:
        workload["resume_python"] = _interpreter(options["resume_python"], options, problems, "--resume-python")
    if options.get("control_command") is not None:
        workload["control_command"] = _words(options["control_command"], "--control-command", problems)
    if options.get("resume_command") is not None:
        workload["resume_command"] = resume = _words(options["resume_command"], "--resume-command", problems)
        if options.get("loss_log") is None and (option := keeps_out(resume)) and not keeps_out(command):
            found = f"--resume-command: {option} keeps out whoever watches the restarted trainer through PYTHONPATH"
            problems.append(f"{found}; expected it without that option, or --loss-log FILE")
    workload |= _loss_log(options, problems)
    if verb != "trace":
        problems += _without_directory(command, "the command")
        resume = workload.get("resume_command") or _BROKEN
        problems += [] if resume == _BROKEN else _without_directory(resume, "--resume-command")
    return workload


def _without_directory(command: Sequence[str], which: str) -> list[str]:
    """Every case needs a checkpoint directory of its own: one that all share would be resumed from by all."""
    if any("{ckpt}" in word for word in command):
        return []
    near = [name for word in command for name in re.findall(r"{(\w+)}", word) if difflib.get_close_matches(name, ["ckpt"])]
    found = f"; found {{{near[0]}}}" if near else ""
    return [f"{which} has no {{ckpt}}{found}; expected it where the trainer takes its checkpoint directory: --out {{ckpt}}"]


def _loss_log(options: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Where the losses are read from, where the probe is not to see them."""
    file, regex = options.get("loss_log"), options.get("loss_regex")
    if file is None:
        problems += [] if regex is None else ["--loss-regex is for --loss-log; expected --loss-log FILE with it"]
        return {}
    regex = LOSS_REGEX if regex is None else regex
    try:
        groups = set(re.compile(regex).groupindex)
    except re.error as error:
        problems.append(f"--loss-regex {regex!r}: {error}; expected a regular expression as Python's re takes it")
        return {}
    if not {"step", "loss"} <= groups:
        missing = " and ".join(sorted({"step", "loss"} - groups))
        problems.append(f"--loss-regex {regex!r} has no group {missing}; expected (?P<step>…) and (?P<loss>…) in it")
    if file == "" or file.startswith("{ckpt}"):
        problems.append(f"--loss-log {file!r}: expected a file outside the checkpoint directory, or - for what is printed")
    return {"probe": False, "loss_log": file, "loss_regex": regex}


def _ranks(options: Mapping[str, Any], problems: list[str]) -> int:
    """As asked for; else two, or as many as the command says that it makes."""
    if options["world_size"] is not None:
        return whole(options["world_size"], "--world-size", "a number of ranks from 1", problems)
    command = [word.replace("{world_size}", "2") for word in options["command"]]
    if not command:
        return 2
    said = _NUMBER_OF_RANKS.search(" ".join(command))
    return int(said[1]) if said else 1


def _short(command: Sequence[str]) -> str:
    words = [word.rpartition("/")[2] for word in command if word.endswith((".py", ".sh"))] or list(command[:1])
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", words[0].rpartition("/")[2] if words else "command")[:60]


def whole(text: str, name: str, expected: str, problems: list[str], least: int = 1, most: int = 10**9) -> int:
    """A whole number of the command line; what is wrong with it is added to the problems."""
    if not re.fullmatch(r"[0-9]{1,30}", text) or not least <= int(text) <= most:
        limit = f", at most {most}" if re.fullmatch(r"[0-9]+", text) and int(text) > most else ""
        problems.append(f"{name} {text}: expected {expected}{limit}")
        return least
    return int(text)


def duration(text: str, problems: list[str]) -> float:
    """Seconds of a time of the command line; what is wrong with it is added to the problems."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([smh]?)", text)
    if match is None or float(match[1]) == 0:
        problems.append(f"--budget {text}: expected a time such as 90s, 10m or 2h")
        return 1.0
    return float(match[1]) * _UNITS[match[2]]
