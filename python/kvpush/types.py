"""What Python and the agent say to each other, as plain values.

They can be pickled, since a scheduler and its workers may be different processes. The native module reads commands and
planes by the names of these classes and fields. Block tables are one array of block ids (uint32) for each KV cache
group: entry i is the block of tokens [i * B, (i + 1) * B), B the group's block size, or `ABSENT`.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

BlockTables = tuple[npt.NDArray[np.uint32], ...]
ABSENT = 0xFFFFFFFF


class Receive(NamedTuple):
    """Consumer: tokens [first, end) of this request shall come from the engine whose directory is host:port.

    The blocks are the agent's until the request's "receive" event.
    """

    request: str
    transfer_id: str
    host: str
    port: int
    first: int
    end: int
    tables: BlockTables


class Abandon(NamedTuple):
    """Consumer: the request is no longer wanted; its event follows as soon as nothing can land any more."""

    request: str


class Decline(NamedTuple):
    """Consumer: nothing is needed of this transfer."""

    transfer_id: str
    host: str
    port: int


class Await(NamedTuple):
    """Consumer: a request for this transfer is queued here; a Receive or Decline of it follows. Until then the producer
    keeps its KV. Ends with exactly one AwaitEnded."""

    transfer_id: str
    host: str
    port: int


class Admit(NamedTuple):
    """Producer: the request of this transfer has its blocks and is about to be computed; Send or Withdraw follows."""

    transfer_id: str


class Send(NamedTuple):
    """Producer: tokens [0, token_count) are complete in these blocks, which stay unchanged until the "send" event."""

    request: str
    transfer_id: str
    token_count: int
    tables: BlockTables


class Cancel(NamedTuple):
    """Producer: stop sending; the event follows as soon as no posted write reads the blocks."""

    request: str


class Withdraw(NamedTuple):
    """Producer: the request of this transfer ended without complete KV."""

    transfer_id: str


Command = Receive | Abandon | Decline | Await | Admit | Send | Cancel | Withdraw


class Event(NamedTuple):
    """The end of a Receive or a Send: each has exactly one.

    `error` is None, or the name of an error code. `bytes` were delivered, within `seconds` after registration and
    computed prompt had met; both are 0 after an error.
    """

    kind: Literal["receive", "send"]
    request: str
    error: str | None
    bytes: int
    seconds: float


class AwaitEnded(NamedTuple):
    """The end of an Await: its prefill has its blocks, or there is nothing to wait for any more."""

    kind: Literal["await"]
    transfer_id: str
    host: str
    port: int


class Scheduled(NamedTuple):
    """What the scheduler saw of a request whose KV is transferred: kvpush/directory/server.h has the same fields.

    Times are seconds of CLOCK_BOOTTIME; None where it did not come to that. A consumer's `host` and `port` name the
    producer's directory.
    """

    side: Literal["producer", "consumer"]
    transfer_id: str
    request: str
    tokens: int
    arrived: float
    host: str = ""
    port: int = 0
    admitted: float | None = None
    computed: float | None = None
    reported: float | None = None
    first_step: float | None = None


class Plane(NamedTuple):
    """One (layer, component) of a rank's KV cache: kvpush/layout/layout.h has the same fields and their meaning."""

    layer: str
    component: Literal["key", "value", "latent", "state"]
    group: int
    dtype: str
    element_bytes: int
    block_tokens: int
    block_count: int
    head_first: int
    head_count: int
    head_total: int
    base: int
    block_stride_bytes: int
    head_stride_bytes: int
    token_stride_bytes: int
    inner_bytes: int
