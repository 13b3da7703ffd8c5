"""How often to save: Young's formula, what it predicts, and where it stops holding.

Responsible for: the figures of `harness interval`: the cost C of one save, timed in a real job or given; the mean time M
between failures of the whole job (that of one machine, divided by their number); the interval T* = sqrt(2CM) of work
between two saves; the waste that the formula predicts there, and the waste that a simulation sees.

Waste is the share of the job's wall time that is no progress: saving, and work that a failure took back. The formula,
waste(T) = C/T + T/(2M), is the first order of that. With failures that come at random (exponentially distributed, as the
formula supposes too) the share is known exactly (`exact_waste`, from Daly's expected run time), and the simulation agrees
with *that*, everywhere. At T*, with s = sqrt(C/(2M)), the formula gives 2s, the exact share is 2s - (4/3)s^2 + O(s^3): the
formula is too high by about (2/3)s of itself, which is 2 % at C = M/560 or so, and 40 % at C = M/2. So C << M alone does
not make the formula exact to 2 %; `formula_limit` says how much smaller C must be. (Counted per second of progress
instead of per second of wall time, the exact waste is 2s + (8/3)s^2, and the formula is too low, by (4/3)s.)

Time to start again after a failure, R, is 0 here: it adds about R/M to the waste at any T, so it does not move T*.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.case import Workbench, check_environment
from harness.errors import HarnessError, UsageError
from harness.plan import make_plan
from harness.scenario import FORMATS, Scenario, job
from harness.session import Session
from harness.store import RankLog, RunDirectory, read_rank_logs
from harness.supervisor import run_attempts

SCHEMA = "harness.interval/1"
HOUR_S = 3600.0
# Llama 3 (Grattafiori et al. 2024, "The Llama 3 Herd of Models", arXiv:2407.21783, section 3.3.4): 419 unexpected
# interruptions in 54 days of 16,384 GPUs, which are 2,048 machines of 8: 54 * 24 / 419 * 2048 = 6,335 hours.
DEFAULT_MACHINE_MTBF_H = 6300
MACHINES = (1, 10, 100, 1_000, 10_000, 100_000)
TOLERANCE = 0.02
NUM_FAILURES = 100_000
SEED = 1974
_MAX = 1e9
_MIN = 1e-9
_MAX_EXPONENT = 700.0  # e**700 is near the largest float; the waste is 1 to the last bit long before
_NUM_SAVES = 12

Say = Callable[[str], None]


# --- the formulas; every time is in seconds


def young_interval_s(save_s: float, mtbf_s: float) -> float:
    """Young's interval of work between two saves, T* = sqrt(2CM), where C/T + T/(2M) is least.

    Raises:
        ValueError: a time is not positive and finite.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s)


def young_waste(interval_s: float, save_s: float, mtbf_s: float) -> float:
    """Young's waste, C/T + T/(2M): a save per interval, and half an interval lost per failure. Above 1 it is no share.

    Raises:
        ValueError: a time is not positive and finite.
    """
    _check(interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    return save_s / interval_s + interval_s / (2 * mtbf_s)


def exact_waste(interval_s: float, save_s: float, mtbf_s: float, restart_s: float = 0.0) -> float:
    """The share of wall time that is no progress, for exponential failures: 1 - T / (M e^(R/M) (e^((T+C)/M) - 1)).

    The divisor is Daly's expected time of one interval and its save, with all repetitions, where a failure during a
    restart starts the restart again.

    Raises:
        ValueError: a time is not positive and finite; `restart_s` may be 0.
    """
    _check(interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    _check_restart(restart_s)
    segments, restarts = (interval_s + save_s) / mtbf_s, restart_s / mtbf_s
    if segments + restarts > _MAX_EXPONENT:
        return 1.0
    return 1.0 - interval_s / (mtbf_s * math.exp(restarts) * math.expm1(segments))


def daly_interval_s(save_s: float, mtbf_s: float) -> float:
    """Daly's higher-order interval: sqrt(2CM) (1 + sqrt(C/(2M))/3 + C/(2M)/9) - C for C < 2M, else M.

    Raises:
        ValueError: a time is not positive and finite.
    """
    _check(save_s=save_s, mtbf_s=mtbf_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = save_s / (2 * mtbf_s)
    return math.sqrt(2 * save_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s


def formula_limit(tolerance: float = TOLERANCE) -> float:
    """The largest C/M at which the formula's waste at T* is within a relative tolerance of the exact waste.

    Only the ratio matters, and the error grows with it, so it is found by halving.

    Raises:
        ValueError: the tolerance is not between 0.001 and 0.4 (the formula's error at C = M/2, where it predicts 100 %).
    """
    if not 0.001 <= tolerance <= 0.4:
        raise ValueError(f"tolerance must be from 0.001 to 0.4, found {tolerance!r}")
    low, high = 1e-9, 1.0
    while high / low > 1 + 1e-9:
        ratio = math.sqrt(low * high)
        interval = young_interval_s(ratio, 1.0)
        if young_waste(interval, ratio, 1.0) <= (1 + tolerance) * exact_waste(interval, ratio, 1.0):
            low = ratio
        else:
            high = ratio
    return low


# --- the simulation


@dataclass(frozen=True)
class Simulated:
    """What a simulation saw: the waste, the standard error of that, and how many failures it is from."""

    waste: float
    standard_error: float
    num_failures: int


def simulate(
    interval_s: float,
    save_s: float,
    mtbf_s: float,
    *,
    restart_s: float = 0.0,
    num_failures: int = NUM_FAILURES,
    seed: int = SEED,
) -> Simulated:
    """Runs a job through failure after failure, event by event, and counts what is left of it.

    The job starts again (R seconds), then works T seconds, saves for C seconds, and so on. A failure, at any time, loses
    everything since the last completed save, whether it hits work, a save or a restart. Between two failures the events
    are so many completed rounds of T + C and one that is cut off; the completed ones are counted by a division, since a
    small job may do thousands of them. The time to the next failure is drawn from an exponential distribution.

    Args:
        interval_s: work between two saves, T.
        save_s: cost of one save, C.
        mtbf_s: mean time between failures of the job, M.
        restart_s: time from a failure to work, R.
        num_failures: how many are drawn; the standard error falls with the root of it. Where not one save was completed,
            the waste is 1 and its standard error 0, which says no more than that it was rare.
        seed: equal seeds give equal results.

    Raises:
        ValueError: a time is not positive and finite (`restart_s` may be 0), or there are fewer than 2 failures.
    """
    _check(interval_s=interval_s, save_s=save_s, mtbf_s=mtbf_s)
    _check_restart(restart_s)
    if type(num_failures) is not int or num_failures < 2:
        raise ValueError(f"num_failures must be a whole number of at least 2, found {num_failures!r}")
    draw, round_s = random.Random(seed).expovariate, interval_s + save_s
    wall = lost = wall_squares = lost_squares = products = 0.0
    for _ in range(num_failures):
        until_failure = draw(1.0) * mtbf_s
        completed = (until_failure - restart_s) // round_s if until_failure > restart_s else 0.0
        no_progress = until_failure - completed * interval_s
        wall += until_failure
        lost += no_progress
        wall_squares += until_failure * until_failure
        lost_squares += no_progress * no_progress
        products += until_failure * no_progress
    waste = lost / wall
    # A ratio of two sums: what scatters is the lost time of each draw beyond its share of that draw.
    scatter = max(0.0, lost_squares - 2 * waste * products + waste * waste * wall_squares)
    return Simulated(waste, math.sqrt(scatter) / wall, num_failures)


# --- what is asked for, and the measurement


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes:
        scenario: the fault-free job whose saves are timed.
        format: its checkpoint format.
        ranks: its number of ranks.
        machine_mtbf_h: hours between failures of one machine.
        machines: machines of the job.
        save_s: C, or None to measure it.
    """

    scenario: Scenario
    format: str
    ranks: int
    machine_mtbf_h: float
    machines: int
    save_s: float | None

    @classmethod
    def parse(cls, format: str, ranks: str, machine_mtbf: str, machines: str, save_cost: str | None) -> Request:
        """Reads the options as they were typed. Raises: UsageError with everything that is wrong with them."""
        problems: list[str] = []
        num_ranks = whole_number("--ranks", ranks, 64, problems)
        mtbf_h = _number("--machine-mtbf", machine_mtbf, "hours", problems)
        num_machines = whole_number("--machines", machines, int(_MAX), problems)
        save_s = None if save_cost is None else _number("--save-cost", save_cost, "seconds", problems)
        if format not in FORMATS:
            problems.append(f"--format: unknown format {format!r}; expected one of {', '.join(FORMATS)}")
        try:
            known = next((name for name in FORMATS if name == format), FORMATS[0])
            scenario = job(known, ranks=num_ranks, name="interval", steps=2 * _NUM_SAVES, save_every=2)
        except UsageError as error:
            said = [text.replace("world_sizes: ", "--ranks: ") for text in error.problems]
            raise UsageError([*problems, *said]) from None
        if problems:
            raise UsageError(problems)
        return cls(scenario, format, num_ranks, mtbf_h, num_machines, save_s)


def _number(option: str, text: str, unit: str, problems: list[str]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _MIN <= value <= _MAX:  # also false for NaN
        problems.append(f"{option}: found {text!r}; expected a number of {unit} from {_MIN:g} to {_MAX:g}")
        return 1.0
    return value


def whole_number(option: str, text: str, largest: int, problems: list[str], least: int = 1) -> int:
    """The number that was typed for an option; `least`, and one more problem, where it is none."""
    # The length first: Python refuses to read a number of thousands of digits.
    value = int(text) if text.isdecimal() and len(text) < 20 else -1
    if not least <= value <= largest:
        problems.append(f"{option}: found {text!r}; expected a whole number from {least} to {largest}")
        return least
    return value


def measure_saves_s(scenario: Scenario) -> tuple[float, ...]:
    """Runs a fault-free job and returns the seconds of each of rank 0's saves, from its event log.

    A save ends when it is durable and committed. The job runs behind the gate, as every job of the harness does, and each
    file operation of a save waits for the supervisor: what is measured is the cost here, a little above that without it.

    Raises:
        UsageError, CapabilityError, LaunchError: the job could not be run.
        HarnessError: it did not come to its end, or did not log its saves.
    """
    check_environment(scenario)
    folder = Path(tempfile.mkdtemp(prefix="harness-interval-"))
    session = Session.new()
    try:
        bench = Workbench(folder / "runs", folder / "baselines", session.warm())
        plan = make_plan(scenario)
        directory = RunDirectory.create(bench.runs / scenario.name, plan)
        run_attempts(plan, directory, bench.launcher(scenario))
        logs = read_rank_logs(directory.attempt(0))
        saves = save_times_s(logs[0]) if 0 in logs else ()
        if not saves or not all(log.ended for log in logs.values()):
            raise HarnessError(f"the job whose saves were to be timed did not end well; {_last_words(directory.attempt(0))}")
        return saves
    finally:
        session.close()
        shutil.rmtree(folder, ignore_errors=True)


def save_times_s(log: RankLog) -> tuple[float, ...]:
    """Seconds of each completed save in an event log, from its `begin` to its `end`; those that failed are left out."""
    begun: dict[str, float] = {}
    times = []
    for record in log.of("save"):
        if record.get("moment") == "begin":
            begun[str(record.get("checkpoint"))] = float(record["time_s"])
        elif record.get("moment") == "end" and (name := str(record.get("checkpoint"))) in begun:
            times.append(float(record["time_s"]) - begun.pop(name))
    return tuple(times)


def _last_words(attempt: Path) -> str:
    said = [line for file in sorted(attempt.glob("*.stderr")) for line in file.read_text(errors="replace").splitlines()[-4:]]
    return "its last words:\n  " + ("\n  ".join(said) or "(nothing)")


# --- the report


@dataclass(frozen=True)
class Row:
    """A job on so many machines; times in seconds, waste as a share, all at Young's interval but for the last two.

    Attributes:
        machines: number of machines.
        mtbf_s: M of the job.
        interval_s: T*.
        predicted: waste by the formula.
        simulated: waste in the simulation.
        standard_error: of `simulated`.
        exact: waste by `exact_waste`.
        error: of the formula against the simulation, relative to it.
        holds: whether that is within `TOLERANCE`.
        daly_interval_s: Daly's interval.
        daly_waste: exact waste at that.
    """

    machines: int
    mtbf_s: float
    interval_s: float
    predicted: float
    simulated: float
    standard_error: float
    exact: float
    error: float
    holds: bool
    daly_interval_s: float
    daly_waste: float


def row(machines: int, save_s: float, machine_mtbf_s: float) -> Row:
    """The row of a job on so many machines, each of which fails by itself. Raises: ValueError if a number is unusable."""
    mtbf_s = machine_mtbf_s / machines
    interval_s, daly_s = young_interval_s(save_s, mtbf_s), daly_interval_s(save_s, mtbf_s)
    predicted, seen = young_waste(interval_s, save_s, mtbf_s), simulate(interval_s, save_s, mtbf_s)
    error = predicted / seen.waste - 1
    return Row(
        machines=machines,
        mtbf_s=mtbf_s,
        interval_s=interval_s,
        predicted=predicted,
        simulated=seen.waste,
        standard_error=seen.standard_error,
        exact=exact_waste(interval_s, save_s, mtbf_s),
        error=error,
        holds=abs(error) <= TOLERANCE,
        daly_interval_s=daly_s,
        daly_waste=exact_waste(daly_s, save_s, mtbf_s),
    )


@dataclass(frozen=True)
class Report:
    """Everything that `harness interval` says.

    Attributes:
        save_s: C.
        save_source: where C comes from, in words.
        saves_s: every save that was timed, in order; empty where C was given.
        machine_mtbf_h: hours between failures of one machine.
        job: the row of the job that was asked about.
        rows: the rows for `MACHINES`.
        limit: `formula_limit()`.
    """

    save_s: float
    save_source: str
    saves_s: tuple[float, ...]
    machine_mtbf_h: float
    job: Row
    rows: tuple[Row, ...]
    limit: float


def report(request: Request, say: Say) -> Report:
    """Times the saves, if C was not given, and works out all rows.

    Args:
        request: what was asked for.
        say: is told what is being measured.

    Raises:
        UsageError, CapabilityError, LaunchError, HarnessError: C could not be measured.
    """
    saves: tuple[float, ...] = ()
    save_s, source = request.save_s, "given by --save-cost"
    if save_s is None:
        job_text = f"{request.format}, {request.ranks} rank{'s' * (request.ranks != 1)}"
        say(f"{_NUM_SAVES} saves of the reference trainer, {job_text}")
        saves = measure_saves_s(request.scenario)
        save_s = statistics.median(saves)
        source = (
            f"median of {len(saves)} saves of the reference trainer ({job_text}), through the gate, in {tempfile.gettempdir()}"
        )
    machine_mtbf_s = request.machine_mtbf_h * HOUR_S
    say("simulation")
    rows = tuple(row(machines, save_s, machine_mtbf_s) for machines in MACHINES)
    asked = next((known for known in rows if known.machines == request.machines), None)
    return Report(
        save_s=save_s,
        save_source=source,
        saves_s=saves,
        machine_mtbf_h=request.machine_mtbf_h,
        job=asked or row(request.machines, save_s, machine_mtbf_s),
        rows=rows,
        limit=formula_limit(),
    )


def to_json(figures: Report) -> str:
    """The report as `harness.interval/1`."""
    return json.dumps({"schema": SCHEMA, "tolerance": TOLERANCE, **asdict(figures)}, indent=1)


def _check(**times: float) -> None:
    for name, value in times.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{name} must be positive and finite, found {value!r}")


def _check_restart(restart_s: float) -> None:
    if restart_s != 0:
        _check(restart_s=restart_s)
