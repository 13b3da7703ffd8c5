"""What is covered, and how it is kept over nights."""

from __future__ import annotations

import json

from harness.chaos.coverage import Coverage, Point, pairs_of, read

KILL, CUT = Point("write", "sigkill", "save", 2), Point("files", "truncate", "rest", 2)


def covered(*cases):
    found = Coverage()
    for points in cases:
        found.add(points)
    return found


def test_points_and_pairs_are_counted():
    found = covered([KILL, CUT], [KILL])
    assert found.points == {KILL: 2, CUT: 1}
    assert found.pairs == {("sigkill write save", "truncate files rest"): 1}
    assert pairs_of([KILL]) == []


def test_what_was_never_covered_counts_most():
    found = covered([KILL], [KILL])
    assert found.novelty([CUT]) > found.novelty([KILL]) > 0
    assert found.novelty([KILL, CUT]) > found.novelty([CUT])


def test_nights_add_up_and_a_broken_line_is_left_out_with_a_word(tmp_path):
    file = tmp_path / "coverage.jsonl"
    other = {**covered([CUT]).to_json(), "schema": "harness.coverage/9"}
    file.write_text(
        "\n".join([json.dumps(covered([KILL]).to_json()), json.dumps(other), "{", json.dumps(covered([KILL, CUT]).to_json())])
    )
    found, problems = read(file)
    assert found.points == {KILL: 2, CUT: 1}
    assert len(problems) == 2
    assert "line 2 is left out" in problems[0]
    assert read(tmp_path / "none") == (Coverage(), [])
