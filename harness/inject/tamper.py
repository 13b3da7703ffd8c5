"""Checkpoints of which every byte can be read, and which are wrong all the same.

Fault model: somebody (another version, a broken tool, an attacker) has changed one precise thing in a manifest or in a
payload. The checksums on the way to it are corrected, so that the damage reaches the code that has to see it: the footer of
a data file, its size and sha256 in the manifest beside it, and the manifest's own checksum.

Knows three shapes of file: `manifest.json`, the zip archive of `torch.save` (with or without the reference trainer's
checksum line after it), and a bare pickle such as the `.metadata` of `torch.distributed.checkpoint`. Pickles are edited
opcode by opcode and never loaded. Not covered: several archives in one file (DCP's data files).
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.checkpoint_files import MANIFEST

MARKER_NAME = "executed-by-load"
# The parts of a payload that no trainer can do without; the first that is there is renamed.
_PARTS = ("small", "optimizer", "model")
_FOOTER = re.compile(rb"\nckpt\.v1 size=\d{20} sha256=([0-9a-f]{64})\n")
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: lengths of its name and of its extra field
_FOOTER_BYTES = len(b"\nckpt.v1 size= sha256=\n") + 20 + 64
_TEXTS = ("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_MEMO = ("BINPUT", "LONG_BINPUT", "MEMOIZE")

Opcode = tuple[str, Any, bytes]  # name, argument, the bytes themselves


def altered(tampering: str, path: Path, marker: Path) -> dict[Path, bytes]:
    """What a file, and the manifest that lists it, become. Writes nothing.

    Args:
        tampering: a name of `harness.fault.TAMPERINGS`.
        path: a file of a checkpoint.
        marker: what a hostile payload makes, should its code ever run.

    Returns:
        The new content of each file that changes; empty where this file has no such thing to tamper with.
    """
    data = path.read_bytes()
    if path.name == MANIFEST:
        changed = _manifest(tampering, data)
        return {} if changed is None else {path: changed}
    changed = _flip_footer(data) if tampering == "sha256-mismatch" else _payload(tampering, data, marker)
    if changed is None or changed == data:
        return {}
    beside = path.with_name(MANIFEST)
    corrected = _corrected(beside.read_bytes(), path.name, changed) if beside.is_file() else None
    return {path: changed, **({} if corrected is None else {beside: corrected})}


# --- manifests


def _manifest(tampering: str, data: bytes) -> bytes | None:
    found = _read_manifest(data)
    if found is None:
        return None
    shards = found["shards"]
    last = shards[-1]
    if tampering == "unknown-schema" and "schema" in found:
        found["schema"] = _other_schema(str(found["schema"]))
    elif tampering == "unsafe-path-absolute":
        last["name"] = f"/tmp/{last['name']}"  # noqa: S108 - it is a name, and nothing is to be opened by it
    elif tampering == "unsafe-path-parent":
        last["name"] = f"../{last['name']}"
    elif tampering == "duplicate-rank":
        shards.append(dict(last))
    elif tampering == "missing-rank":
        shards.pop()
    elif tampering == "sha256-mismatch":
        last["sha256"] = _other_digit(str(last["sha256"]))
    else:
        return None
    return _sealed(found)


def _read_manifest(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except ValueError:
        return None
    shards = found.get("shards") if isinstance(found, dict) else None
    ok = isinstance(shards, list) and shards and all(isinstance(s, dict) and {"name", "sha256"} <= s.keys() for s in shards)
    return found if ok else None


def _sealed(found: dict[str, Any]) -> bytes:
    """The manifest as text, its own checksum made to fit where it has one."""
    if "sha256" in found:
        fields = {key: value for key, value in found.items() if key != "sha256"}
        found = {**fields, "sha256": hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()}
    return json.dumps(found, indent=1).encode()


def _corrected(manifest: bytes, name: str, content: bytes) -> bytes | None:
    """The manifest with the size and sha256 of a file that has changed; None where it does not list the file."""
    found = _read_manifest(manifest)
    listed = [shard for shard in found["shards"] if shard["name"] == name] if found else []
    for shard in listed:
        shard.update(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    return _sealed(found) if found and listed else None


def _other_schema(schema: str) -> str:
    return "other" + schema.removeprefix("ckpt")


def _other_digit(sha256: str) -> str:
    return ("1" if sha256[0] == "0" else "0") + sha256[1:]


# --- data files


def _flip_footer(data: bytes) -> bytes | None:
    match = _FOOTER.fullmatch(data[-_FOOTER_BYTES:])
    return None if match is None else data.replace(match[1], _other_digit(match[1].decode()).encode())


def _payload(tampering: str, data: bytes, marker: Path) -> bytes | None:
    """A data file whose pickle has been tampered with; None where that cannot be done to it."""
    try:
        if data[:1] == b"\x80":
            return _edited(tampering, data, marker)
        footed = _FOOTER.fullmatch(data[-_FOOTER_BYTES:]) is not None
        body = _rezipped(data[:-_FOOTER_BYTES] if footed else data, lambda pickled: _edited(tampering, pickled, marker))
    except (zipfile.BadZipFile, ValueError):
        return None  # damaged before: there is no pickle left in it
    if body is None or not footed:
        return body
    return body + f"\nckpt.v1 size={len(body):020d} sha256={hashlib.sha256(body).hexdigest()}\n".encode()


def _rezipped(data: bytes, edit: Callable[[bytes], bytes | None]) -> bytes | None:
    """The archive with another `data.pkl`; None where there is none, or where it does not begin with the file."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(result, "w") as new:
        members = old.infolist()
        if not members or members[0].header_offset:
            return None
        pickles = [member for member in members if member.filename.endswith("/data.pkl")]
        edited = edit(_stored(data, pickles[0])) if pickles else None
        if edited is None:
            return None
        for member in members:
            new.writestr(zipfile.ZipInfo(member.filename), edited if member is pickles[0] else _stored(data, member))
    return result.getvalue()


def _stored(data: bytes, member: zipfile.ZipInfo) -> bytes:
    """A member's bytes as they stand in the archive. `ZipFile.read` would insist on its checksum, which torch may leave out.

    Raises:
        ValueError: it is compressed, or not where the archive's directory says.
    """
    header = data[member.header_offset : member.header_offset + _LOCAL_HEADER.size]
    if member.compress_type != zipfile.ZIP_STORED or len(header) < _LOCAL_HEADER.size:
        raise ValueError(member.filename)
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
    start = member.header_offset + _LOCAL_HEADER.size + name_bytes + extra_bytes
    return data[start : start + member.file_size]


# --- pickles


def _edited(tampering: str, pickled: bytes, marker: Path) -> bytes | None:
    opcodes = _opcodes(pickled)
    texts = [argument for name, argument, _ in opcodes if name in _TEXTS]
    if tampering == "unknown-schema":
        return _renamed(opcodes, {text: _other_schema(text) for text in texts if text.startswith("ckpt")})
    if tampering == "missing-key":
        return _renamed(opcodes, {part: f"another-{part}" for part in _PARTS if part in texts}, most=1)
    if tampering == "renamed-tensor":
        return _renamed(opcodes, {text: f"{text}-of-another" for text in texts if text.endswith(".weight")}, most=1)
    if tampering == "unexpected-key":
        return _with_entry(opcodes)
    if tampering == "hostile-pickle":
        return _with_code(opcodes, marker)
    return None


def _opcodes(pickled: bytes) -> list[Opcode]:
    """The opcodes without frames, which say how many bytes follow and would be wrong after an edit.

    Raises:
        ValueError: this is no pickle.
    """
    found = [(code.name, argument, position) for code, argument, position in pickletools.genops(pickled)]
    ends = [position or 0 for _, _, position in found[1:]] + [len(pickled)]
    cut = [(name, arg, pickled[position or 0 : end]) for (name, arg, position), end in zip(found, ends, strict=True)]
    return [opcode for opcode in cut if opcode[0] != "FRAME"]


def _text(text: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(text.encode())) + text.encode()


def _renamed(opcodes: list[Opcode], names: dict[str, str], most: int | None = None) -> bytes | None:
    """The pickle with other texts, wherever they stand; of `names`, the first `most` only."""
    chosen = dict(list(names.items())[:most])
    if not chosen:
        return None
    return b"".join(_text(chosen[arg]) if name in _TEXTS and arg in chosen else raw for name, arg, raw in opcodes)


def _with_entry(opcodes: list[Opcode]) -> bytes | None:
    """The pickle with one more entry in the dict that it is, or that DCP's metadata lists its tensors in."""
    names = [name for name, _, _ in opcodes]
    start = next((place for place, (_, arg, _) in enumerate(opcodes) if arg == "state_dict_metadata"), 0)
    if "EMPTY_DICT" not in names[start:]:
        return None
    place = names.index("EMPTY_DICT", start) + 1
    place += names[place] in _MEMO
    return _joined(opcodes, place, _text("unexpected") + pickle.NONE + pickle.SETITEM)


def _with_code(opcodes: list[Opcode], marker: Path) -> bytes:
    """The pickle behind a call of `os.makedirs(marker, 0o777, True)`, of which nothing else is felt."""
    call = pickle.GLOBAL + b"os\nmakedirs\n"
    arguments = _text(str(marker)) + pickle.BININT2 + struct.pack("<H", 0o777) + pickle.NEWTRUE + pickle.TUPLE3
    place = 1 if opcodes[0][0] == "PROTO" else 0
    return _joined(opcodes, place, call + arguments + pickle.REDUCE + pickle.POP)


def _joined(opcodes: list[Opcode], place: int, inserted: bytes) -> bytes:
    raw = [raw for _, _, raw in opcodes]
    return b"".join([*raw[:place], inserted, *raw[place:]])
