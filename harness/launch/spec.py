"""What the supervisor asks a keeper to start. Pure data, sent as JSON over the control socket.

The control socket is a Unix socket of sequenced packets. The supervisor sends one `LaunchSpec`; the keeper and its
children answer with records: `disk`, `gate` (carries a listener), `started`, `exited`, `refused`, `done`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

MESSAGE_BYTES = 180_000  # below the kernel's default limit for one packet


@dataclass(frozen=True)
class ProcessSpec:
    """One process to start.

    Attributes:
        rank: whose; -1 for a launcher that makes its own ranks.
        arguments: the whole command line for a cold start; the arguments after the program for a warm one.
        entry: "module:function" to call in a forked copy of the warm server; "" to execute `arguments`.
        environment: variables to set, on top of the keeper's own.
        stdout: path of the file that gets its output; stderr likewise.
    """

    rank: int
    arguments: tuple[str, ...]
    entry: str
    environment: dict[str, str]
    stdout: str
    stderr: str


@dataclass(frozen=True)
class LaunchSpec:
    """All processes of one attempt.

    Attributes:
        directory: working directory of the processes.
        supervisor: its process id.
        gated: whether they run behind the gate; `reads`, `read_opens` and `output` say what else it traps.
        disk_path: where a disk of the attempt's own is mounted, "" for none.
        disk_kind: tmpfs (a small disk, of `disk_bytes`), or ext4 or xfs (a real one, whose power can be cut).
    """

    processes: tuple[ProcessSpec, ...]
    directory: str
    supervisor: int
    gated: bool = True
    reads: bool = False
    read_opens: bool = False
    output: bool = False
    disk_path: str = ""
    disk_kind: str = "tmpfs"
    disk_bytes: int = 0
    unset: tuple[str, ...] = field(default=())

    def to_message(self) -> bytes:
        """JSON. Raises: ValueError where it does not fit into one packet."""
        data = json.dumps(asdict(self)).encode()
        if len(data) > MESSAGE_BYTES:
            raise ValueError(f"the launch request has {len(data)} bytes; at most {MESSAGE_BYTES} fit into one message")
        return data

    @classmethod
    def from_message(cls, data: bytes) -> LaunchSpec:
        """The inverse of `to_message`."""
        fields: dict[str, Any] = json.loads(data)
        processes = tuple(ProcessSpec(**{**item, "arguments": tuple(item["arguments"])}) for item in fields.pop("processes"))
        return cls(processes=processes, **{**fields, "unset": tuple(fields["unset"])})
