"""From the words of `harness chaos` to what is asked for, with every problem found. Starts and writes nothing."""

from __future__ import annotations

import difflib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.chaos.drawing import DEFAULT_FAMILIES, FAMILIES, missing_extra
from harness.chaos.found import Request
from harness.chaos.journal import Unfinished
from harness.check_request import default_jobs, duration, job_of, whole
from harness.errors import UsageError
from harness.scenario import Reference, Scenario

# Four saves in two epochs, the last two of which are kept; everything that a job can have in its state; any number of ranks.
REFERENCE = {
    "steps": 8,
    "save_every": 2,
    "keep_last": 2,
    "batches_per_epoch": 4,
    "width": 16,
    "precision": "fp16",
    "reshard": True,
    "rng_scope": "global",
}
BUDGET = "30m"


def parse_request(options: Mapping[str, Any], problems: Sequence[str] = ()) -> Request:
    """What `harness chaos` is asked for.

    Args:
        options: as the command line names them, as texts.
        problems: what is wrong already.

    Raises:
        UsageError: with every problem found.
    """
    found = [*missing_extra(), *problems]  # before anything is run, and not when the first schedule is drawn
    settings = _settings(options["set"], found)
    if settings and options["command"]:
        found.append("--set is for the reference trainer; expected --reference FORMAT with it")
    seed = options["seed"] if options["seed"] is not None else str(secrets.randbelow(10**6))
    words = {**options, "seed": "0", "reference": REFERENCE, "settings": settings, "world_sizes": None}
    scenario = job_of("chaos", words, found)
    sizes = options["world_sizes"]
    request = Request(
        scenario=scenario,
        seed=whole(seed, "--seed", "a whole number from 0", found, least=0, most=2**62),
        budget_s=duration(options["budget"], found),
        jobs=default_jobs() if options["jobs"] is None else whole(options["jobs"], "--jobs", "a number from 1", found, most=256),
        families=_families(options["faults"], found),
        shard=_shard(options["shard"], found),
        launch=options["launch"],
        world_sizes=None if sizes is None else _sizes(sizes, found),
        corpus=options["corpus"].resolve() if options["corpus"] else None,
        canary=options["canary"],
        shrink=options["shrink"],
        exit_first=options["exit_first"],
        most=None if options["cases"] is None else whole(options["cases"], "--cases", "a number of cases from 1", found),
    )
    if found:
        raise UsageError(found)
    return request


def request_of(unfinished: Unfinished) -> Request:
    """What a night was asked for that is to go on.

    Raises:
        UsageError: its journal does not say it in the words of this version.
    """
    try:
        facts = dict(unfinished.entries[0]["request"])
        scenario = Scenario.model_validate_json(json.dumps(facts.pop("scenario")))
        corpus = facts.pop("corpus")
        plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
        return Request(scenario=scenario, corpus=Path(corpus) if corpus else None, **plain)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            [
                f"{unfinished.folder}: its journal was written by another version, or edited: {error}; "
                "expected a night of this version"
            ]
        ) from None


def _settings(words: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """The settings of the reference trainer; whether a value is possible its model says."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().replace("-", "_")
        field = Reference.model_fields.get(name)
        if not equals or field is None or name in ("kind", "format", "defects"):
            near = difflib.get_close_matches(name, sorted(Reference.model_fields), 1)
            hint = f"; did you mean {near[0]}?" if near and near[0] != name else ""
            problems.append(f"--set {word}: expected NAME=VALUE, a setting of the reference trainer such as precision=fp32{hint}")
            continue
        found[name] = _value(text, field.annotation)
    return found


def _value(text: str, kind: Any) -> Any:
    if kind is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    if kind is int:
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else text
    if kind is float:
        return float(text) if re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]*)?(?:e-?[0-9]{1,3})?", text) else text
    return text


def _families(text: str | None, problems: list[str]) -> tuple[str, ...]:
    if text is None:
        return DEFAULT_FAMILIES
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if "all" in names:
        return FAMILIES
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        problems.append(
            f"--faults {text}: unknown {', '.join(map(repr, unknown))}; expected all, or some of {','.join(FAMILIES)}"
        )
    return tuple(name for name in FAMILIES if name in names)


def _shard(text: str, problems: list[str]) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        problems.append(f"--shard {text}: expected I/N, such as 1/4 to 4/4 for four machines")
        return 1, 1
    return int(match[1]), int(match[2])


def _sizes(text: str, problems: list[str]) -> tuple[int, ...]:
    return tuple(
        whole(one.strip(), "--world-sizes", "numbers of ranks such as 1,4", problems, most=64) for one in text.split(",")
    )
