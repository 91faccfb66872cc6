"""A vLLM scheduler for the reference server of these tests: the last prompt token is computed in a step of its own.

A decode server that received a prompt's KV computes the last prompt token alone. A single server computes it together
with the tokens before it, which rounds differently in bfloat16, and then near-ties part. With this scheduler
(`--scheduler-cls reference.LastTokenAlone`) the single server does what decode does, so that exact equality may be
asked for. It leans on one internal method of vLLM 0.32; a test fails if the method is no longer called.
"""

from __future__ import annotations

from vllm.v1.core.sched.scheduler import Scheduler


class LastTokenAlone(Scheduler):
    """The scheduler of vLLM, except that no step computes the last prompt token together with earlier ones."""

    def _reserve_prefill_lookahead(self, request, num_computed_tokens: int, num_new_tokens: int) -> int:
        # vLLM asks this of every chunk, so that it can end a chunk earlier than the budget allows.
        before_last = request.num_prompt_tokens - 1 - num_computed_tokens
        wanted = min(num_new_tokens, before_last) if before_last > 0 else num_new_tokens
        return super()._reserve_prefill_lookahead(request, num_computed_tokens, wanted)
