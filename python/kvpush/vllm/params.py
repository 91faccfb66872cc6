"""`kv_transfer_params`: what a request says about its transfer. Clients control every value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# Of the core: kTransferIdBytesMax and the length of a DNS name.
TRANSFER_ID_BYTES_MAX = 128
HOST_BYTES_MAX = 253


class BadParams(ValueError):
    """The text says what is wrong, for the log."""


@dataclass(frozen=True)
class PrefillLeg:
    """This engine computes the prompt for another one. Without a transfer id the engine makes one."""

    transfer_id: str | None


@dataclass(frozen=True)
class DecodeLeg:
    """The prompt's KV comes from the engine whose directory is host:port."""

    transfer_id: str
    host: str
    port: int


def wants_remote_prefill(params: Any) -> bool:
    """Whether these are meant for a decode leg, be they right or wrong."""
    return isinstance(params, dict) and bool(params.get("do_remote_prefill"))


def parse(params: Any) -> PrefillLeg | DecodeLeg | None:
    """The leg that a request is; None for a request without transfer. Raises BadParams.

    Fields that are not known are ignored: routers made for other connectors send some.
    """
    if params is None:
        return None
    if not isinstance(params, dict):
        raise BadParams(f"kv_transfer_params is a {type(params).__name__}, not an object")
    prefill, decode = (_flag(params, name) for name in ("do_remote_decode", "do_remote_prefill"))
    if prefill and decode:
        raise BadParams("do_remote_decode and do_remote_prefill are both true")
    if prefill:
        transfer_id = params.get("transfer_id")
        return PrefillLeg(None if transfer_id is None else _text(params, "transfer_id", TRANSFER_ID_BYTES_MAX))
    if decode:
        return DecodeLeg(
            _text(params, "transfer_id", TRANSFER_ID_BYTES_MAX),
            _text(params, "remote_host", HOST_BYTES_MAX),
            _port(params, "remote_port"),
        )
    return None


def _flag(params: dict[str, Any], name: str) -> bool:
    value = params.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadParams(f"{name} is neither true nor false")


def _text(params: dict[str, Any], name: str, bytes_max: int) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise BadParams(f"{name} is missing or no text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise BadParams(f"{name} is no valid text") from None
    if size > bytes_max or not value.isprintable():
        raise BadParams(f"{name} is longer than {bytes_max} bytes or has characters that cannot be printed")
    return value


def _port(params: dict[str, Any], name: str) -> int:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
        raise BadParams(f"{name} is missing or no port")
    return value


# Request ids as vLLM 0.32 makes them (entrypoints/openai/completion/serving.py and chat_completion/batch_serving.py,
# v1/engine/input_processor.py, v1/engine/parallel_sampling.py): "cmpl-<call>-<index of the prompt>-<8 random hex
# digits>", "chatcmpl-<call>_<index of the conversation>-<8 hex digits>" in a batch of chats, before it "<index>_" for
# each of the samples of n > 1. Other endpoints have one prompt in a call.
#
# A client chooses <call>, by X-Request-Id, and that of a single chat may end like a batch's. It is read as one then, in
# both legs alike if both have that X-Request-Id.
_PROMPT = re.compile(r"(?:\d+_)?(cmpl-.+)-(\d{1,7})(?:-[0-9a-f]{8})?", re.DOTALL)
_CONVERSATION = re.compile(r"(?:\d+_)?chatcmpl-.+_(\d{1,7})(?:-[0-9a-f]{8})?", re.DOTALL)
_SAMPLE = re.compile(r"(\d{1,7})_(.+)", re.DOTALL)
# "resp_<call>_<index of the turn>-<8 hex digits>" (entrypoints/openai/responses/serving.py).
_LATER_TURN = re.compile(r"resp_.+_[1-9]\d{0,6}-[0-9a-f]{8}", re.DOTALL)


def prompt_of(request_id: str) -> tuple[str, int]:
    """The call that a request belongs to, and the index of its prompt in the call.

    Conversations of a batch count as calls of their own: vLLM's answer to a batch has no params, so nobody would learn
    an id that was made up for all of them.
    """
    prompt = _PROMPT.fullmatch(request_id)
    if prompt:
        return prompt[1], int(prompt[2])
    conversation = _CONVERSATION.fullmatch(request_id)
    return request_id, int(conversation[1]) if conversation else 0


def first_sample_of(request_id: str) -> str | None:
    """For a sample after the first of one prompt: the request id of the first; else None."""
    match = _SAMPLE.fullmatch(request_id)
    return f"0_{match[2]}" if match and int(match[1]) > 0 else None


def is_later_turn(request_id: str) -> bool:
    """Whether it goes on after a tool that vLLM called for /v1/responses.

    vLLM gives it the params of the first turn, whose KV has come and gone, although its prompt is longer.
    """
    return _LATER_TURN.fullmatch(request_id) is not None


def transfer_of(transfer_id: str, request_id: str) -> str:
    """The transfer of one prompt: routers name a call, and each prompt of it is a transfer of its own.

    Raises BadParams when the name becomes too long.
    """
    _, index = prompt_of(request_id)
    name = f"{transfer_id}#{index}" if index > 0 else transfer_id
    if len(name.encode()) > TRANSFER_ID_BYTES_MAX:
        raise BadParams(f"transfer_id with the index of the prompt is longer than {TRANSFER_ID_BYTES_MAX} bytes")
    return name
