"""kv_connector_extra_config, and engines that are refused at start."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kvpush.vllm.layout import Unsupported
from kvpush.vllm.options import Options, check_supported


def test_options_have_defaults_and_the_port_that_vllm_was_given():
    options = Options.read({}, kv_port=5000)
    assert options == Options("127.0.0.1", 5000, 0, "auto", "", False, 1.0, "auto")
    assert Options.read({"directory_port": 6000, "idle_wait_ms": 0}, kv_port=5000).directory_port == 6000


def test_options_say_how_peers_are_authenticated():
    assert Options.read({"secret_file": "/etc/kvpush/secret"}, kv_port=5000).secret_file == "/etc/kvpush/secret"
    assert Options.read({"allow_unauthenticated": True}, kv_port=5000).allow_unauthenticated


@pytest.mark.parametrize("reserve", ["auto", "early", "admitted"])
def test_options_say_when_destinations_are_reserved(reserve):
    assert Options.read({"reserve": reserve}, kv_port=5000).reserve == reserve


def test_unknown_keys_are_named():
    with pytest.raises(ValueError, match=r"hots.*its keys are.*host"):
        Options.read({"hots": "x"}, kv_port=5000)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("host", ""),
        ("host", 5),
        ("transport", None),
        ("secret_file", None),
        ("allow_unauthenticated", "yes"),
        ("allow_unauthenticated", 1),
        ("directory_port", "80"),
        ("directory_port", -1),
        ("control_port", 65536),
        ("control_port", True),
        ("idle_wait_ms", -1),
        ("idle_wait_ms", 11),
        ("idle_wait_ms", "1"),
        ("reserve", "late"),
        ("reserve", True),
        ("reserve", ["auto"]),
    ],
)
def test_values_that_cannot_be_used_are_named(key, value):
    with pytest.raises(ValueError, match=key):
        Options.read({key: value}, kv_port=5000)


def engine(world_size=1, data_parallel_size=1, is_encoder_decoder=False):
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=world_size, data_parallel_size=data_parallel_size),
        model_config=SimpleNamespace(is_encoder_decoder=is_encoder_decoder),
    )


def test_engines_that_cannot_be_served_yet_are_refused():
    check_supported(engine())
    for refused in (engine(world_size=2), engine(data_parallel_size=2), engine(is_encoder_decoder=True)):
        with pytest.raises(Unsupported):
            check_supported(refused)
