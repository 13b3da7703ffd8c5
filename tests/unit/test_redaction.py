"""Paths and names are replaced, and nothing else."""

from __future__ import annotations

import pytest

from harness.redaction import Redactor, known_names, known_places, names_in

PLACES = {"/home/alice": "HOME", "/home/alice/project": "TRAINER", "/tmp": "TMP", "/": "ROOT"}
NAMES = {"alice": "USER", "blackbox": "HOST", "root": "USER", "data": "USER", "x": "USER"}


@pytest.fixture
def redact():
    return Redactor(PLACES, NAMES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('File "/home/alice/project/train.py", line 3', 'File "TRAINER/train.py", line 3'),
        ("/home/alice/project", "TRAINER"),
        ("/home/alice/projects/a.py", "HOME/projects/a.py"),
        ("/home/alicewonder/a.py", "PATH-1/a.py"),
        ("saved to /mnt/disk 1/x", "saved to PATH-1/disk 1/x"),
        ("file:///mnt/d/rendezvous and --out=/mnt/d/ckpt", "file://PATH-1/rendezvous and --out=PATH-1/ckpt"),
        ("/opt/v/lib/python3.11/site-packages/torch/optim/adam.py", "site-packages/torch/optim/adam.py"),
        ("/usr/lib/python3.11/json/decoder.py", "python3.11/json/decoder.py"),
        ("alice@blackbox:~$ ALICE", "USER@HOST:~$ USER"),
        ("alice_model alice-2 malice alices", "USER_model USER-2 malice alices"),
        ("mail alice.b@example.org from 10.1.2.3, not 127.0.0.1", "mail MAIL from ADDRESS, not 127.0.0.1"),
        ("gloo from fe80::1ff:fe23:4567:890a%eth0, [2001:db8::7]:29500", "gloo from ADDRESS, [ADDRESS]:29500"),
        ("2001:0db8:0000:0000:0000:ff00:0042:8329 is not ::1", "ADDRESS is not ::1"),
        # What must stay as it is.
        ("12:34:56 c10::Error at::add test_a.py::test_b 00:1b:44:11:3a:b7 [::] ::", None),
        ("the root of the data, step-*/rank0.bin and/or 3/4 of {ckpt}/a/b", None),
        ("write step-00000016/rank1.bin.tmp at 50%", None),
        ("https://example.org/a/b", None),
        ("/dev/shm/x and /proc/self/maps", None),
        ("torch 2.13.0 at 1.2.3.4.5 in 3 it/s", None),
    ],
)
def test_texts(redact, text, expected):
    assert redact.text(text) == (text if expected is None else expected)


def test_whose_folder_it_is_is_nobodys_business():
    assert names_in(["/home/bob/project", "/Users/eve", "/opt/x"]) == {"bob": "USER", "eve": "USER"}
    redact = Redactor({"/home/bob/project": "TRAINER"}, names_in(["/home/bob/project"]))
    assert redact.text("/home/bob/project/a.py of bob, not /home/eve") == "TRAINER/a.py of USER, not PATH-1/USER"


def test_one_folder_has_one_word(redact):
    assert redact.text("/a/b/c /a/b/d /a/e/f") == "PATH-1/c PATH-1/d PATH-2/f"
    assert redact.text("/a/e/g") == "PATH-2/g"


def test_json_is_replaced_in_texts_and_keys_and_keeps_its_shape(redact):
    value = {"path": ["/home/alice/ü/a", 3, None], "/home/alice/k": {"user": "alice", "n": 1.5, "yes": True}}
    assert redact.data(value) == {"path": ["HOME/ü/a", 3, None], "HOME/k": {"user": "USER", "n": 1.5, "yes": True}}


def test_what_this_machine_is_called(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "bob"))
    monkeypatch.setenv("USER", "robert")
    monkeypatch.setenv("HOSTNAME", "lab-7")
    monkeypatch.setattr("socket.gethostname", lambda: "node3.lab.example")
    names = known_names()
    assert {name: names[name] for name in ("bob", "robert", "lab-7", "node3.lab.example", "node3")} == {
        "bob": "USER",
        "robert": "USER",
        "lab-7": "HOST",
        "node3.lab.example": "HOST",
        "node3": "HOST",
    }
    assert known_places()[str(tmp_path / "bob")] == "HOME"
