"""`kv_connector_extra_config`, and what of vLLM's configuration kvpush cannot serve yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from kvpush.vllm.layout import Unsupported

Reserve = Literal["auto", "early", "admitted"]


@dataclass(frozen=True)
class Options:
    """The keys of `kv_connector_extra_config`.

    host: address of this machine, on which everything listens and which peers are told.
    directory_port: TCP port of the engine's directory; vLLM's `kv_port` unless given. 0: any free port.
    control_port: TCP port for the sessions of peers; 0: any free port.
    transport: how bytes move: "auto", "cma", "nixl", "ucx"; "nixl:PLUGIN;key=value" names NIXL's plugin and its
        parameters.
    secret_file: path of the secret that all peers must know (docs/authentication.md). "": none, and `host` has to be a
        loopback address.
    allow_unauthenticated: listen on any `host` without a secret.
    idle_wait_ms: how long a step without tokens waits for a transfer to end, at most.
    reserve: when a request whose KV comes from elsewhere may take blocks. "early": at once. "admitted": when its
        prefill has its own, or there is nothing to wait for. "auto": early while there is room, otherwise as admitted.
    """

    host: str = "127.0.0.1"
    directory_port: int = 14579
    control_port: int = 0
    transport: str = "auto"
    secret_file: str = ""
    allow_unauthenticated: bool = False
    idle_wait_ms: float = 1.0
    reserve: Reserve = "auto"

    @staticmethod
    def read(extra_config: Mapping[str, Any], kv_port: int) -> Options:
        """Raises ValueError that names the key that is unknown or has a value that cannot be used."""
        known = {field.name for field in fields(Options)}
        unknown = sorted(set(extra_config) - known)
        if unknown:
            raise ValueError(
                f"kv_connector_extra_config: kvpush does not know {', '.join(unknown)}; "
                f"its keys are {', '.join(sorted(known))}"
            )
        options = Options(**{"directory_port": kv_port, **extra_config})
        for name in ("host", "transport"):
            if not isinstance(getattr(options, name), str) or not getattr(options, name):
                raise ValueError(f"kv_connector_extra_config: {name} is no text")
        if not isinstance(options.secret_file, str):
            raise ValueError("kv_connector_extra_config: secret_file is no text")
        if not isinstance(options.allow_unauthenticated, bool):
            raise ValueError("kv_connector_extra_config: allow_unauthenticated is neither true nor false")
        for name in ("directory_port", "control_port"):
            port = getattr(options, name)
            if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 65536:
                raise ValueError(f"kv_connector_extra_config: {name} is no port")
        wait = options.idle_wait_ms
        # While it waits the engine reads no new requests: 10 ms of delay is more than anybody wants.
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= 10:
            raise ValueError("kv_connector_extra_config: idle_wait_ms is no number from 0 to 10")
        if options.reserve not in get_args(Reserve):
            raise ValueError(f"kv_connector_extra_config: reserve is none of {', '.join(get_args(Reserve))}")
        return options


def check_supported(vllm_config: Any) -> None:
    """Raises Unsupported if this engine is one that kvpush cannot serve yet, naming what to change."""
    parallel = vllm_config.parallel_config
    if parallel.world_size > 1:
        raise Unsupported(
            f"kvpush serves engines of one worker yet, not {parallel.world_size}: "
            "run without tensor, pipeline and context parallelism"
        )
    if parallel.data_parallel_size > 1:
        raise Unsupported("kvpush does not serve data parallel engines yet: start one server for each replica")
    if vllm_config.model_config.is_encoder_decoder:
        raise Unsupported("kvpush does not serve encoder-decoder models")
