"""Two stand-in engines with the same secret, with different ones, and with a secret on one side only."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import peer_lines, troubles
from engine_process import EngineProcess, text_of
from http_process import ProgramEnded

PROMPT = list(range(100, 200))
TOKENS = 8


def secret(folder: Path, letter: str) -> tuple[str, str]:
    """The flags of an engine whose secret is that letter, many times."""
    path = folder / letter
    path.write_text(letter * 32 + "\n")
    path.chmod(0o600)
    return "--secret-file", str(path)


def transfer(p: EngineProcess, d: EngineProcess) -> tuple[int, str]:
    """Status and text of a prompt whose KV `d` wants from `p`."""
    params = {"do_remote_decode": True, "transfer_id": "t"}
    text_of(p.complete(PROMPT, 1, kv_transfer_params=params))
    params = {
        "do_remote_prefill": True,
        "transfer_id": "t",
        "remote_host": "127.0.0.1",
        "remote_port": p.directory_port,
    }
    answer = d.complete(PROMPT, TOKENS, kv_transfer_params=params).finish()
    return answer.status, answer.body.decode() if answer.status != 200 else answer.json["choices"][0]["text"]


def test_engines_with_one_secret_push_kv(tmp_path):
    flags = secret(tmp_path, "s")
    with EngineProcess("both") as alone:
        expected = text_of(alone.complete(PROMPT, TOKENS))
    with EngineProcess("prefill", *flags) as p, EngineProcess("decode", *flags) as d:
        assert transfer(p, d) == (200, expected)
        assert d.prompt_tokens("received") > 0


# Shows F1.
@pytest.mark.parametrize(("p_letter", "d_letter"), [("a", "b"), ("a", ""), ("", "b")])
def test_engines_without_a_common_secret_refuse_each_other_and_count_it(tmp_path, p_letter, d_letter):
    p_flags, d_flags = (secret(tmp_path, letter) if letter else () for letter in (p_letter, d_letter))
    with EngineProcess("prefill", *p_flags) as p, EngineProcess("decode", *d_flags) as d:
        status, text = transfer(p, d)
        assert status >= 500 and "unauthenticated" in text
        of_p, of_d = troubles(p), troubles(d)
        assert of_p.pop("sessions_unauthenticated producer") > 0 and of_p == {}
        assert of_d.pop("sessions_unauthenticated consumer") > 0 and of_d == {"receives unauthenticated": 1}
        assert len(p.logged("control: refusing 127.0.0.1: ")) == 1
        assert len(peer_lines(d, p.directory_port)) == 1
        d.wait_for_rest()


def test_an_engine_that_others_reach_needs_a_secret():
    with pytest.raises(ProgramEnded) as ended:
        EngineProcess("prefill", "--directory", "0.0.0.0:0")
    assert ended.value.status == 2


def test_a_secret_that_others_can_read_is_refused(tmp_path):
    flag, path = secret(tmp_path, "s")
    Path(path).chmod(0o644)
    with pytest.raises(ProgramEnded) as ended:
        EngineProcess("prefill", flag, path)
    assert ended.value.status == 2
