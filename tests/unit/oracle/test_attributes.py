"""What is held outside of state dicts: averages always, plain values where something is felt."""

from __future__ import annotations

import pytest
from histories import SAVE_EVERY, STEPS, baseline, killed_and_resumed, only
from test_foreign_jobs import foreign

from harness.oracle.attributes import EMPTY, attributes, names_in, text_of
from harness.oracle.loss import loss


def said_of(batch):
    """The fields of a `state` record: an average, a generator, a counter, a setting, a data set."""
    return {
        "averages": {"ema": f"average of {batch}"},
        "generators": {"shuffler": f"drawn {batch}"},
        "modes": {"model.0.training": "=True", "model.0.requires_grad": f"={batch >= 6}"},
        "attributes": {"Stopper.patience": f"={batch // 3}", "start": "=0", "data": "0123"},
    }


def watched(log, start=0):
    """Puts a record before each batch, as the probe does in an uninterrupted run, and after the load."""
    batch, records = start, []
    for record in log.records:
        if record["event"] == "batch":
            records.append({"event": "state", "rank": log.rank, "moment": "next", "digests": {}, **said_of(batch)})
            batch = record["batch"]
        if record["event"] == "state" and record["moment"] == "load":
            record |= said_of(batch)
        records.append(record)
    log.records[:] = records
    log.__dict__.pop("batches", None)


def watched_case():
    run, golden = foreign(killed_and_resumed()), baseline()
    for log in golden.ranks.values():
        watched(log)
    for log in run.attempts[1].ranks.values():
        watched(log, 12)
    return run, golden


def load_of(run, rank=0):
    return next(r for r in run.attempts[1].ranks[rank].records if r["event"] == "state" and r["moment"] == "load")


def lose(run, rank, value, start=0):
    """The average of that rank, from a record of its restart on."""
    for record in [r for r in run.attempts[1].ranks[rank].of("state") if "averages" in r][start:]:
        record["averages"]["ema"] = value


def feel(run):
    """Another loss after the resume."""
    for log in run.attempts[1].ranks.values():
        for record in log.of("batch"):
            record["loss"] = record["global_loss"] = "0x1p+3"
        log.__dict__.pop("batches", None)


def test_what_is_held_as_ever_is_fine():
    run, golden = watched_case()
    assert attributes(run, golden) == []
    feel(run)
    assert loss(run, golden)
    assert attributes(run, golden) == []


def test_an_average_is_missed_though_nothing_feels_it():
    run, golden = watched_case()
    lose(run, 0, "average of 0")
    found = only(attributes(run, golden), "state-lost")
    assert (found.component, found.rank, found.step, found.attempt, found.late) == ("ema", 0, 12, 1, False)
    assert (found.expected, found.found) == ("average of 12", "average of 0")
    assert found.message.startswith("the average ema of rank 0 after the load of step-00000012.pt in attempt 1")


def test_an_average_that_goes_wrong_later_is_missed_there():
    run, golden = watched_case()
    lose(run, 1, "other", 4)
    found = only(attributes(run, golden), "state-lost")
    assert (found.component, found.rank, found.late) == ("ema", 1, True)
    assert "after batch 15 in attempt 1" in found.message


def test_a_copy_that_is_made_anew_was_not_lost():
    run, golden = watched_case()
    load_of(run)["averages"]["ema"] = "average of 0"
    assert attributes(run, golden) == []


def test_a_copy_that_is_made_now_and_then_is_missed_where_something_is_felt():
    run, golden = watched_case()
    for log in golden.ranks.values():
        for record in log.of("state"):
            if "averages" in record:
                record["averages"] = {"copy": "a" if record["averages"]["ema"] < "average of 2" else "b"}
    for record in run.attempts[1].ranks[0].of("state"):
        record["averages"] = {"copy": "c"}
    assert attributes(run, golden) == []
    feel(run)
    assert only(attributes(run, golden), "state-lost").message.startswith("copy of rank 0 after the load")


@pytest.mark.parametrize("side", ["golden", "resumed"])
def test_an_average_that_only_one_of_them_has_is_not_lost(side):
    run, golden = watched_case()
    if side == "resumed":
        for log in run.attempts[1].ranks.values():
            for record in log.of("state"):
                record["averages"] = {"loaded": "x"}
    else:
        for log in golden.ranks.values():
            for record in log.of("state"):
                record["averages"] = {}
    assert attributes(run, golden) == []


def test_a_copy_of_the_weights_that_stands_still_may_be_another():
    run, golden = watched_case()
    for record in [r for log in golden.ranks.values() for r in log.of("state")]:
        record["averages"] = {"ema": "average of 0"}
    assert attributes(run, golden) == []


@pytest.mark.parametrize(
    ("field", "name", "value", "component", "texts"),
    [
        ("attributes", "Stopper.patience", "=0", "counters", ("4", "0")),
        ("generators", "shuffler", "drawn 0", "rng.generators", ("drawn 12", "drawn 0")),
        ("attributes", "data", "4567", "counters", ("0123", "4567")),
        ("modes", "model.0.training", "=False", "model.modes", ("True", "False")),
        ("modes", "model.0.requires_grad", "=False of body.weight", "model.modes", ("True", "False of body.weight")),
    ],
)
def test_what_may_begin_anew_is_a_cause_where_something_is_felt(field, name, value, component, texts):
    run, golden = watched_case()
    for rank in (0, 1):
        load_of(run, rank)[field][name] = value
    assert attributes(run, golden) == []
    feel(run)
    found = attributes(run, golden)
    assert [(one.component, one.rank) for one in found] == [(component, 0), (component, 1)]
    assert (found[0].expected, found[0].found) == texts


def test_settings_and_noise_are_no_cause():
    run, golden = watched_case()
    load_of(run)["attributes"] |= {"start": "=12", "Stopper.patience": "=9"}
    feel(run)
    noisy = baseline()
    noisy.ranks.update(golden.ranks)
    object.__setattr__(noisy, "noise", frozenset({"attributes.Stopper.patience"}))
    assert attributes(run, noisy) == []


def test_only_what_has_changed_is_written_and_what_is_gone_is_null():
    run, golden = watched_case()
    for log in golden.ranks.values():
        before = {}
        for record in log.of("state"):
            if "attributes" in record:
                now = record["attributes"]
                record["attributes"] = {name: value for name, value in now.items() if before.get(name) != value}
                before = now
    load_of(run)["attributes"]["Stopper.patience"] = "=0"
    feel(run)
    assert only(attributes(run, golden), "state-lost").expected == "4"
    for log in golden.ranks.values():
        record = [r for r in log.of("state") if "attributes" in r][12]
        record["attributes"]["Stopper.patience"] = None
    assert attributes(run, golden) == []


def test_nothing_is_asked_of_other_jobs_and_other_numbers_of_ranks():
    run, golden = watched_case()
    load_of(run)["averages"]["ema"] = "other"
    plain = killed_and_resumed()
    plain.attempts[1] = run.attempts[1]
    assert attributes(plain, golden) == []
    object.__setattr__(golden, "world_size", 4)
    assert attributes(run, golden) == []


def test_values_are_told_as_people_write_them():
    assert [text_of(value) for value in ("=0x1.8000000000000p+1", "=3", "=None", "='a'", "ab12", "=0xzz")] == [
        "3",
        "3",
        "None",
        "'a'",
        "ab12",
        "0xzz",
    ]
    assert SAVE_EVERY < STEPS


@pytest.mark.parametrize(("more", "found"), [({}, ["counters"]), ({"background": True}, []), ({"pointer": True}, [])])
def test_saves_after_other_batches_are_felt(more, found):
    run, golden = watched_case()
    for log in (*golden.ranks.values(), *run.attempts[1].ranks.values()):
        place = 0
        for record in log.records:
            place = record["batch"] if record["event"] == "batch" else place
            if record["event"] == "save":
                record["batch"] = place
    load_of(run)["attributes"]["Stopper.patience"] = "=0"
    assert attributes(run, golden) == []
    for record in run.attempts[1].ranks[0].of("save", moment="begin"):
        record.update(more, batch=record["batch"] - 1)
    assert [one.component for one in attributes(run, golden)] == found


def test_a_list_that_is_empty_again_explains_nothing():
    run, golden = watched_case()
    load_of(run)["attributes"]["Stopper.patience"] = EMPTY
    feel(run)
    assert attributes(run, golden) == []


@pytest.mark.parametrize("value", ["average of 0", EMPTY])
def test_what_an_optimizer_keeps_beside_its_state_is_the_optimizers(value):
    run, golden = watched_case()
    for log in (*golden.ranks.values(), *run.attempts[1].ranks.values()):
        for record in [r for r in log.of("state") if "averages" in r]:
            record["averages"] = {"optimizer.0.momenta": record["averages"]["ema"]}
    for record in [r for r in run.attempts[1].ranks[0].of("state") if "averages" in r]:
        if value == EMPTY:
            record["averages"], record["attributes"] = {}, {"optimizer.0.momenta": EMPTY}
        else:
            record["averages"]["optimizer.0.momenta"] = value
    found = only(attributes(run, golden), "state-lost")
    assert (found.component, found.rank, found.late) == ("optimizer", 0, False)
    assert found.message.startswith("the tensors optimizer.0.momenta of rank 0 after the load")
    assert names_in(found.message) == ["optimizer.0.momenta"]


def test_a_load_in_the_middle_of_a_batch_is_compared_with_nothing():
    run, golden = watched_case()
    for rank in (0, 1):
        load_of(run, rank)["attributes"]["Stopper.patience"] = "=0"
        load_of(run, rank)["micro"] = 1
    feel(run)
    assert attributes(run, golden) == []
