# The few commands of this repository. Each sets up what a fresh machine lacks (on Debian as root; elsewhere
# it says what is missing) and leaves alone what is there. `cargo xtask` lists the finer ones.

.PHONY: help demo test bench bench-peers models-table build dist clean

help:
	@echo 'make demo    build everything and stream an answer from a real model'
	@echo '             (make demo MODEL=folder-or-file.gguf PROMPT="...")'
	@echo 'make test    run every test'
	@echo 'make bench   measure what the library promises, against mlx-lm in the same run'
	@echo 'make bench-peers  install llama.cpp, compiled here, for make bench to compare with too'
	@echo 'make models-table  compare every family of models with mlx-lm and write docs/models.md'
	@echo 'make build   the library, as a folder that can be moved: target/dist'
	@echo 'make dist    the same as an archive'
	@echo 'make clean   remove everything that was built or fetched'

# Variables given on the command line reach the recipe in its environment.
demo: rust
	@cargo xtask demo

test: rust
	@cargo xtask test

bench: rust
	@cargo xtask bench

bench-peers: rust
	@cargo xtask bench-peers

models-table: rust
	@cargo xtask models-table

build: rust
	@cargo xtask build

dist: rust
	@cargo xtask dist

clean:
	rm -rf target

# What cargo itself needs before it can build the tasks.
.PHONY: rust
rust:
	@command -v cargo >/dev/null || { echo 'Rust 1.95 or newer is missing: install it with rustup' >&2; exit 1; }
	@command -v cc >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -q && apt-get install -y -q --no-install-recommends g++; } || \
		{ echo 'a C compiler is missing; on Debian or Ubuntu: sudo apt-get install g++' >&2; exit 1; }
