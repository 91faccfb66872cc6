# The commands of this project. Each is one script in tools/, which tells more with --help.

.DEFAULT_GOAL := help
.PHONY: help demo serve test check-fast bench bench-peers bench-submit bench-wire clean

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: ## install what is needed, push prompts between two vLLM servers, show what happened
	@tools/demo.py

serve: ## the same servers and router, kept running until Ctrl-C
	@tools/demo.py --serve

test: ## install what is needed, build with both compilers, run every test
	@tools/check

check-fast: ## house rules, format, ruff, the C++ tests and the Python package: before each commit
	@tools/check house format ruff release package

bench: ## measure planning, posting, transports and an idle agent
	@tools/bench.py

bench-peers: ## compare with vLLM's own connectors (ARGS="--rotations 3": see bench/peers/compare.py --help)
	@tools/setup
	@.venv/bin/python bench/peers/compare.py $(ARGS)

bench-submit: ## compare planning and posting with vLLM's NIXL connector (ARGS: see bench/submit/submit.py --help)
	@tools/setup
	@.venv/bin/python bench/submit/submit.py $(ARGS)

bench-wire: ## compare transports with bare programs, perftest and NIXL alone (ARGS: see bench/wire/wire.py --help)
	@tools/setup
	@.venv/bin/python bench/wire/wire.py $(ARGS)

clean: ## remove what was built; what was installed stays
	@rm -rf build/release build/separate build/dev build/fuzz build/tsan build/wheel build/check build/bench build/demo
