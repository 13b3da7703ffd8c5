"""What was not restored and not felt: told, and no failure."""

from __future__ import annotations

import pytest
from histories import baseline, killed_and_resumed
from test_attributes import feel, load_of, watched_case

from harness.judge import judge
from harness.oracle.attributes import EMPTY
from harness.oracle.loss import loss
from harness.oracle.unfelt import Unfelt, told, unfelt


def names(run, golden, findings=()):
    return [one.name for one in unfelt(run, golden, findings)]


def later(run, **fields):
    """Puts these values into all records behind the load."""
    for record in [r for r in run.attempts[1].ranks[0].of("state") if "attributes" in r and r["moment"] != "load"]:
        for field, values in fields.items():
            record[field] = {**record[field], **values}


def test_nothing_is_said_where_all_is_what_it_was():
    assert names(*watched_case()) == []


@pytest.mark.parametrize(
    ("field", "name", "value", "component"),
    [
        ("attributes", "Stopper.patience", "=0", "counters"),
        ("attributes", "Stopper.patience", EMPTY, "counters"),
        ("generators", "shuffler", "drawn 0", "rng.generators"),
        ("averages", "ema", "average of 0", "ema"),
    ],
)
def test_what_changes_and_was_not_restored_is_told(field, name, value, component):
    run, golden = watched_case()
    load_of(run)[field][name] = value
    later(run, **{field: {name: value}})
    (one,) = unfelt(run, golden, ())
    assert (one.name, one.component, one.found) == (name, component, value)


def test_settings_noise_and_names_of_one_run_only_are_not_told():
    run, golden = watched_case()
    load_of(run)["attributes"] |= {"start": "=12", "new": "=1", "data": "4567", "Stopper.patience": "=9"}
    noisy = baseline()
    noisy.ranks.update(golden.ranks)
    object.__setattr__(noisy, "noise", frozenset({"attributes.Stopper.patience"}))
    assert names(run, noisy) == []


def test_what_is_worked_out_anew_with_each_batch_is_not_told_and_a_best_value_is():
    run, golden = watched_case()
    for log in golden.ranks.values():
        for place, record in enumerate(r for r in log.of("state") if "attributes" in r):
            record["attributes"] |= {"last": f"={place}", "best": "=7" if place else "=inf"}
    load_of(run)["attributes"] |= {"last": "=None", "best": "=inf"}
    later(run, attributes={"best": "=7"})
    for record in [r for r in run.attempts[1].ranks[0].of("state") if "attributes" in r and r["moment"] != "load"]:
        batch = int(record["averages"]["ema"].rpartition(" ")[2])
        record["attributes"]["last"] = f"={batch}"
    assert names(run, golden) == ["best"]


def test_a_global_generator_that_stands_elsewhere_is_told():
    run, golden = watched_case()
    for log in golden.ranks.values():
        for place, record in enumerate(log.of("state")):
            record["digests"] = {**record["digests"], "rng.torch": f"drawn {place}", "rng.python": "never"}
    for record in run.attempts[1].ranks[0].of("state"):
        record["digests"] = {**record["digests"], "rng.torch": "other", "rng.python": "never"}
    (one,) = unfelt(run, golden, ())
    assert (one.name, one.component) == ("rng.torch", "rng.torch")


def test_what_a_loader_of_torch_counts_is_not_told():
    run, golden = watched_case()
    for log in golden.ranks.values():
        for place, record in enumerate(r for r in log.of("state") if "attributes" in r):
            record["attributes"]["loader._iterator._num_yielded"] = f"={place}"
    load_of(run)["attributes"]["loader._iterator._num_yielded"] = "=0"
    assert names(run, golden) == []


def test_a_load_in_the_middle_of_a_batch_is_compared_with_nothing():
    run, golden = watched_case()
    load_of(run).update(micro=1)
    load_of(run)["attributes"]["Stopper.patience"] = "=0"
    assert names(run, golden) == []


def test_where_something_is_felt_the_findings_say_it():
    run, golden = watched_case()
    load_of(run)["attributes"]["Stopper.patience"] = "=0"
    assert names(run, golden) == ["Stopper.patience"]
    assert names(killed_and_resumed(), golden) == []  # of another job nothing is known
    feel(run)
    assert names(run, golden, loss(run, golden)) == []


def test_it_is_in_the_verdict_and_changes_nothing_of_it():
    run, golden = watched_case()
    before = judge(run, golden)
    load_of(run)["attributes"]["Stopper.patience"] = "=0"
    after = judge(run, golden)
    assert (before.outcome, before.unfelt) == (after.outcome, ())
    expected = {"name": "Stopper.patience", "component": "counters", "expected": "4", "found": "0"}
    assert after.to_json()["unfelt"] == [expected]


def test_a_handful_is_named_and_the_rest_counted():
    several = [Unfelt(f"v{number}", "counters", f"={number}", "=0") for number in range(7)]
    assert told([]) == ""
    assert told([Unfelt("history", "counters", "0123", EMPTY), several[3], several[3]]).endswith(
        ": history, v3 (3 in the uninterrupted run, 0 after the load)"
    )
    assert told(several).endswith("v4 (4 in the uninterrupted run, 0 after the load), and 2 more")
