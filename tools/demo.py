#!/usr/bin/env python3
"""Pushes prompts from a prefill to a decode vLLM server through the router, and shows that it worked.

Installs what is missing first (tools/setup). Needs no GPU. With --serve the servers keep running until Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request

import servers
from process import ROOT, ProcessError, end_on_signals

LOGS = ROOT / "build" / "demo"
TOKENS = 24
SETTLE_LIMIT_S = 5.0  # from the last token of an answer until both sides have ended its transfer

PROMPTS = (
    "The three states of matter are solid, liquid and",
    "Once upon a time there was a lighthouse keeper who",
    "To make a good cup of tea, first",
    # A few hundred tokens, so that there is something to push.
    "The town lies where two rivers meet. "
    * 6
    + "Every autumn, when the water rises, the people carry their boats up to the market square, hang lanterns in the "
    "windows and tell each other the story of the winter in which the bridge was lost. "
    * 8
    + "This year the story began with",
)

# Compared with a server that computes the last prompt token in a step of its own, as decode does: a step that computes
# it with others rounds differently in bfloat16, and near-ties then part.
REFERENCE = servers.Vllm(
    args=("--scheduler-cls", "reference.LastTokenAlone"), env={"PYTHONPATH": str(ROOT / "tests" / "vllm")}
)

_begin = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _begin:4.0f} s] {text}", flush=True)


def show_streamed(url: str, prompt: str) -> str:
    """Asks for a completion, shows its tokens as they come and returns the text."""
    body = {"model": servers.MODEL_NAME, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    body["ignore_eos"] = True
    request = urllib.request.Request(
        url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    shown = prompt if len(prompt) < 60 else f"... {prompt[-50:]}"
    print(f"\n  > {shown}", end="", flush=True)
    pieces = []
    with urllib.request.urlopen(request, timeout=servers.COMPLETION_LIMIT_S) as answer:
        for line in answer:
            data = line.decode().strip().removeprefix("data: ")
            if data and data != "[DONE]":
                pieces.append(json.loads(data)["choices"][0]["text"])
                print(pieces[-1].replace("\n", " "), end="", flush=True)
    print(flush=True)
    return "".join(pieces)


def show_transfers(p: servers.VllmServer, d: servers.VllmServer) -> None:
    """One timeline for each transfer, from what both sides remember of it. Both run on the clock of this machine."""
    servers.wait_until(lambda: not p.transfers("live") and not d.transfers("live"), SETTLE_LIMIT_S)
    print("\nWhat happened to each transfer, in milliseconds after its first event:\n")
    for received in d.transfers("ended"):
        (sent,) = (one for one in p.transfers("ended") if one["transfer_id"] == received["transfer_id"])
        points = [
            (record["start_boot_seconds"] + seconds, side, name)
            for side, record in (("prefill", sent), ("decode", received))
            for name, seconds in record["timeline_seconds"].items()
            # Decode also remembers what prefill told it; here prefill itself is asked.
            if side == "prefill" or name not in sent["timeline_seconds"]
        ]
        points.sort(key=lambda point: point[0])  # stable: points of one instant stay in their order
        size = f"{received['tokens']} tokens, {received['bytes'] / 1e6:.2f} MB"
        print(f"  {received['transfer_id']}  {received['outcome']}  {size}")
        for at, side, name in points:
            print(f"    {1000 * (at - points[0][0]):9.2f}  {side:7}  {name.replace('_', ' ')}")


def show_how_to_try(router: servers.Router, d: servers.VllmServer, p: servers.VllmServer) -> None:
    body = json.dumps({"model": servers.MODEL_NAME, "prompt": "My favourite animal is the", "max_tokens": 20})
    print(f"\n  curl {router.url}/v1/completions -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    print(f"  curl {d.directory_url}/kvpush/v1/transfers     # what decode received")
    print(f"  curl {p.directory_url}/kvpush/v1/engine        # what prefill is")
    print(f"  curl {d.directory_url}/metrics\n")


def demonstrate(cluster: servers.Cluster, p: servers.VllmServer, d: servers.VllmServer, router: servers.Router) -> bool:
    """Returns whether everything was as it should be."""
    alone = servers.VllmServer("one server alone", REFERENCE, LOGS / "alone.log")
    say("sending prompts through the router")
    answers = {prompt: show_streamed(router.url, prompt) for prompt in PROMPTS}
    show_transfers(p, d)

    computed, received = d.prompt_tokens("local_compute"), d.prompt_tokens("external_kv_transfer")
    print(f"\nDecode computed {computed} prompt tokens for {len(PROMPTS)} prompts and received {received}.")
    cluster.stop(router, d, p)

    say("the same prompts to one server alone, without a connector")
    cluster.start(alone)
    lone = {prompt: servers.complete(alone.url, prompt, TOKENS).text for prompt in PROMPTS}
    equal = [answers[prompt] == lone[prompt] for prompt in PROMPTS]
    print(f"\n{sum(equal)} of {len(equal)} answers equal those of one server alone.")
    right = computed == len(PROMPTS) and all(equal)
    print("Decode computed one token of each prompt; all else was pushed to it." if right else "That is NOT right.")
    print("\nTo try it yourself: `make serve` keeps the servers running and says what to type.")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help="keep the servers running until Ctrl-C")
    arguments = parser.parse_args()
    end_on_signals()
    if subprocess.run([ROOT / "tools" / "setup"], check=False).returncode != 0:
        return 1

    options = servers.Vllm()
    p = servers.VllmServer("prefill", options, LOGS / "prefill.log", role="kv_producer", core=0)
    d = servers.VllmServer("decode", options, LOGS / "decode.log", role="kv_consumer", core=1)
    with servers.Cluster(say) as cluster:
        say("starting a prefill and a decode server, each on a core of its own; this takes about a minute")
        cluster.start(p, d)
        router = servers.Router([p], [d], LOGS / "router.log")
        cluster.start(router)
        if not arguments.serve:
            return 0 if demonstrate(cluster, p, d, router) else 1
        say("running until Ctrl-C; try:")
        show_how_to_try(router, d, p)
        try:
            while True:
                cluster.check_running()
                time.sleep(1)
        except KeyboardInterrupt:
            say("stopping")
            return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except (ProcessError, OSError) as error:
        sys.exit(str(error))
