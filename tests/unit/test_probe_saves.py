"""Where the probe lets a save of a foreign job begin and end, from the names that are opened; no torch, no process."""

from __future__ import annotations

import threading

import pytest

from harness.probe.injected.resume_probe import saves


class Job:
    """A job whose training goes on by itself."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(saves, "when_imported", lambda *_: None)
        monkeypatch.setattr(saves.sys, "addaudithook", lambda _: None)
        self.said, self.batches, self.began_at = [], 0, 0
        self.saves = saves.Saves("/ckpt", self.began, lambda: self.batches > self.began_at, self.ended, self.failed)

    def began(self, name):
        self.began_at = self.batches
        self.said.append(f"begin {name}")

    def ended(self):
        name, _ = self.saves.taken()
        self.said.append(f"end {name}")

    def failed(self, where, error):
        raise AssertionError(where) from error

    def opens(self, name):
        self.saves._opens(f"/ckpt/{name}", "wb", 0)

    def renames(self, old, new):
        self.saves._renames(f"/ckpt/{old}", f"/ckpt/{new}")

    def in_thread(self, what, hold=None):
        thread = threading.Thread(target=what)
        thread.start()
        if hold is None:
            thread.join()
        return thread


@pytest.fixture
def job(monkeypatch):
    return Job(monkeypatch)


def test_the_pointer_that_a_thread_writes_last_ends_its_save_however_far_training_has_got(job):
    def save():
        job.opens("ckpt-3.pt.tmp")
        job.batches += 2
        job.renames("ckpt-3.pt.tmp", "ckpt-3.pt")
        job.opens("latest.txt.tmp")
        job.renames("latest.txt.tmp", "latest.txt")

    job.in_thread(save)
    assert job.said == ["begin ckpt-3.pt.tmp"], "nothing can have been promised before the pointer stands"
    assert job.saves.name == "ckpt-3.pt"
    assert job.saves.quiet(), "the thread is gone, so the next batch ends the save"


def test_a_thread_that_lives_on_ends_a_save_with_the_next_one(job):
    def save():
        for number in (3, 6):
            job.opens(f"ckpt-{number}.pt.tmp")
            job.batches += 2
            job.renames(f"ckpt-{number}.pt.tmp", f"ckpt-{number}.pt")
            job.opens("latest.txt.tmp")

    job.in_thread(save)
    assert job.said == ["begin ckpt-3.pt.tmp", "end ckpt-3.pt", "begin ckpt-6.pt.tmp"]


def test_a_pointer_of_the_training_thread_is_not_of_the_save_before(job):
    job.opens("ckpt-3.pt")
    job.batches += 1
    job.opens("latest")
    assert job.said == ["begin ckpt-3.pt", "end ckpt-3.pt", "begin latest"]


def test_who_waits_for_one_background_save_and_begins_the_next_has_made_two(job):
    def save(number):
        job.batches = 6  # training is so fast that no batch lies between them
        job.opens(f"ckpt-{number}.pt.tmp")
        job.renames(f"ckpt-{number}.pt.tmp", f"ckpt-{number}.pt")

    for number in (3, 6):
        job.saves._heard("_thread.start_new_thread", ())
        job.in_thread(lambda number=number: save(number))
    assert job.said == ["begin ckpt-3.pt.tmp", "end ckpt-3.pt", "begin ckpt-6.pt.tmp"]


def test_threads_that_write_one_save_together_make_one(job):
    job.saves._heard("_thread.start_new_thread", ())
    together = threading.Barrier(3)

    def write(name):
        if name == "model.pt":
            job.opens(name)
        together.wait(60)
        together.wait(60)
        if name == "optim.pt":
            job.opens(name)

    threads = [job.in_thread(lambda name=name: write(name), hold=True) for name in ("model.pt", "optim.pt")]
    together.wait(60)
    job.saves._heard("_thread.start_new_thread", ())
    together.wait(60)
    for thread in threads:
        thread.join()
    assert job.said == ["begin model.pt"]


def test_any_other_thread_of_a_job_that_saves_by_itself_is_no_matter(job):
    job.in_thread(lambda: job.opens("ckpt-0.pt"))
    job.batches += 1
    job.opens("ckpt-3.pt")
    job.saves._heard("_thread.start_new_thread", ())
    job.opens("optim.pt")
    assert job.said == ["begin ckpt-0.pt", "end ckpt-0.pt", "begin ckpt-3.pt"]
