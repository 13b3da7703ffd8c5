from __future__ import annotations

from histories import baseline, killed_and_resumed, kinds

from harness.oracle.hygiene import hygiene


def test_nothing_left_over_passes():
    run = killed_and_resumed()
    run.attempts[0].supervisor.append({"event": "leftover", "processes": [], "shared_memory": [], "mounts": []})
    assert hygiene(run, baseline()) == []


def test_each_kind_of_left_over_is_a_leak():
    run = killed_and_resumed()  # its second attempt ends by itself
    left = {"event": "leftover", "processes": [[17, "python"], [18, "sh"]], "shared_memory": ["torch_1_2"], "mounts": ["/mnt/x"]}
    run.attempts[1].supervisor.append(left)
    found = hygiene(run, baseline())
    assert kinds(found) == ["leak", "leak", "leak"]
    assert found[0].message == "2 processes outlived attempt 1: python (pid 17), sh (pid 18)"
    assert found[1].message == "1 shared memory outlived attempt 1: torch_1_2"


def test_a_rank_that_was_killed_could_not_end_its_own_children():
    run = killed_and_resumed()
    left = {"event": "leftover", "processes": [[17, "python"]], "shared_memory": ["torch_1_2"], "mounts": ["/mnt/x"]}
    run.attempts[0].supervisor.append(left)
    assert [finding.message for finding in hygiene(run, baseline())] == ["1 mounts outlived attempt 0: /mnt/x"]
