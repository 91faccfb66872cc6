"""kvpush beside what a user of vLLM would pick instead: vLLM's own pull and push connectors, and one server alone.

All servers are up at once on two cores, P on one and D on the other; all but those of the way being measured are
paused. The ways take turns in an order that moves on with each rotation, so that what disturbs the machine disturbs all
of them. Prints one table and writes JSON and an SVG.

With --demote-spinners (which needs the right to raise priorities again, as root has) ways whose threads spin while idle
have a second turn with these threads at a lower priority: the nearest thing to a spare core for them.

The model has random weights and the KV geometry of Qwen3-32B (8 heads of 128 elements) in 16 layers: 64 KiB a token.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import load
import report
import results
import servers
import ways
from process import ROOT, run_program
from results import say

OUT = ROOT / "build" / "bench" / "peers"
MODEL = OUT / "model"
IDLE_S = 5.0
NIXL = {"nixl": "1.5.1", "nixl-cu13": "1.5.1"}
OPTIONS = servers.Vllm(model=MODEL, model_len_max=4096, batched_tokens_max=2048, args=("--load-format", "dummy"))


def make_model() -> None:
    """A config with random weights: vLLM makes them from a fixed seed, the same in each server."""
    MODEL.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": 16,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_size": 128,
        "intermediate_size": 128,
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (MODEL / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (servers.MODEL / name).exists():
            shutil.copy(servers.MODEL / name, MODEL)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", default=",".join(ways.WAYS), help="what is compared (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=numbers, default=[256, 1024], metavar="N,N")
    parser.add_argument("--at-once", type=numbers, default=[1, 4], metavar="N,N", help="clients in a closed loop")
    parser.add_argument("--requests", type=int, default=6, help="in each rotation, for each way and load")
    parser.add_argument("--rotations", type=int, default=7)
    parser.add_argument("--output-tokens", type=int, default=8)
    parser.add_argument(
        "--prefix-caching",
        action="store_true",
        help="half of each prompt is that of the others in its turn, at whose beginning caches are empty",
    )
    parser.add_argument("--fragmented", action="store_true", help="leave the block pools in disorder first")
    parser.add_argument(
        "--demote-spinners",
        type=int,
        default=0,
        metavar="NICE",
        help="measure ways whose threads spin while idle a second time, with these threads at this nice value",
    )
    parser.add_argument("--out", type=Path, default=OUT / "peers.json")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.ways.split(",") if name not in ways.WAYS]
    if unknown:
        parser.error(f"unknown ways {unknown}; there are {', '.join(ways.WAYS)}")
    return arguments


class Comparison:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._loads = [
            load.Load(
                tokens,
                at_once,
                arguments.requests,
                arguments.output_tokens,
                common_tokens=tokens // 2 if arguments.prefix_caching else 0,
            )
            for tokens in arguments.prompt_tokens
            for at_once in arguments.at_once
        ]
        self._series: dict[load.Load, dict[str, report.Series]] = {one: {} for one in self._loads}
        self._idle: dict[str, dict[str, float]] = {}

    def run(self, cluster: servers.Cluster) -> None:
        turns = self._deploy(cluster)
        for rotation in range(self._arguments.rotations):
            shift = rotation % len(turns)
            for way, deployment in turns[shift:] + turns[:shift]:
                with deployment.running(way):
                    for one in self._loads:
                        self._measure(deployment, one, rotation)
            say(f"rotation {rotation + 1} of {self._arguments.rotations}")
            self.write()

    def _deploy(self, cluster: servers.Cluster) -> list[tuple[ways.Way, ways.Deployment]]:
        """The ways in their order, each with its servers."""
        deployments: dict[tuple[str, str], ways.Deployment] = {}
        turns = []
        niceness = self._arguments.demote_spinners
        for name in self._arguments.ways.split(","):
            way = ways.WAYS[name]
            if way.servers not in deployments:
                deployments[way.servers] = self._start(cluster, way)
            deployment = deployments[way.servers]
            turns.append((way, deployment))
            if niceness and deployment.spinners:
                turns.append((way.demoted(niceness), deployment))
        for way, deployment in turns:
            self._idle[way.name] = self._idle[deployment.way.name]
        return turns

    def _start(self, cluster: servers.Cluster, way: ways.Way) -> ways.Deployment:
        options = OPTIONS
        if self._arguments.prefix_caching:  # in that mode a server's cache can be emptied
            options = replace(options, prefix_caching=True, env={**options.env, "VLLM_SERVER_DEV_MODE": "1"})
        deployment = ways.Deployment(way, options, OUT / "logs")
        cluster.start(*deployment.servers.values())
        moved = deployment.keep_on_cores()
        if self._arguments.fragmented:
            load.fragment(deployment)
        deployment.find_spinners()
        idle = self._idle[way.name] = deployment.idle_share(IDLE_S)
        for one in deployment.servers.values():
            one.pause()
        say(f"{way.name}: up; idle {idle}; {moved} threads put back on their core, {len(deployment.spinners)} spin")
        return deployment

    def _measure(self, deployment: ways.Deployment, one: load.Load, rotation: int) -> None:
        name = deployment.way.name
        series = self._series[one].setdefault(name, report.Series(name, one))
        before = deployment.cpu_seconds()
        series.rotations.append(load.run(deployment, one, rotation))
        for side, seconds in deployment.cpu_seconds().items():
            series.cpu_s[side] = series.cpu_s.get(side, 0.0) + seconds - before[side]

    def rows(self) -> list[dict]:
        return [
            report.summary(series, by_way, self._idle[name])
            for by_way in self._series.values()
            for name, series in by_way.items()
        ]

    def write(self) -> None:
        rows = self.rows()
        results.write(self._arguments.out, self._arguments, rows, report.picture(rows))


def main() -> int:
    arguments = parse()
    if any(ways.WAYS[name].is_nixl for name in arguments.ways.split(",")) and not all(map(results.installed, NIXL)):
        wanted = " ".join(f"{name}=={version}" for name, version in NIXL.items())
        sys.exit(
            "vLLM's own connectors need NIXL: build/tools/uv/bin/uv pip install --python .venv/bin/python --no-deps "
            f"{wanted} brings it"
        )
    make_model()
    comparison = Comparison(arguments)
    with servers.Cluster(lambda line: say(f"  {line}")) as cluster:
        comparison.run(cluster)
    rows = comparison.rows()
    print(json.dumps(results.measured_on()))
    print(report.table(rows))
    for row in rows:
        for error in row["errors"]:
            print(f"{row['way']}, {row['prompt_tokens']} tokens: {error}")
    print(f"\n{arguments.out} has all of it; {arguments.out.with_suffix('.svg')} is a picture")
    return 0


if __name__ == "__main__":
    run_program(main)
