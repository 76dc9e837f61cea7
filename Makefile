# The front door. Each target works on a fresh Debian or Ubuntu with a Rust toolchain and Python 3.11 or later: it
# installs what else is missing, or says what to install. Caches live in $DAYFLY_CACHE (~/.cache/dayfly), never here.

.DEFAULT_GOAL := help
.PHONY: help demo demo-frames test bench papers lint build package docs fmt generate env test-rust test-python loom soak miri sanitize valgrind clean
export DAYFLY_CACHE DAYFLY_PYTHON DAYFLY_PEERS DAYFLY_RECORD

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: ## build, then run functions over real input and show their latencies
	@scripts/demo

demo-frames: ## build, then join and group trips on four workers, and draw the result
	@scripts/demo-frames

test: ## build, then run every test
	@scripts/test

bench: ## measure beside the machine's limits and beside the peers (DAYFLY_RECORD=NAME keeps a page of it)
	@scripts/bench

papers: ## measure the papers' experiments that this machine can run, beside the papers' figures
	@scripts/papers

lint: ## formatting, clippy, ruff, mypy, drift of generated files, known advisories, documentation
	@scripts/lint

build: ## programs, C library and Python package, released
	@scripts/build

package: ## tarball, Debian package, RPM and wheels for glibc 2.28 or later, into build/packages
	@scripts/package

docs: ## build the documentation site into build/docs, and check its links
	@scripts/docs

fmt: ## format everything
	@cargo fmt --all && "$$(scripts/bootstrap)" -m ruff format --no-cache bindings/python bindings/frames tests benches examples scripts docs

env: ## print where cargo builds for this checkout: eval "$(make -s env)"
	@bash -c '. scripts/environment.sh; echo "export CARGO_TARGET_DIR=$$CARGO_TARGET_DIR"; [ -z "$${DAYFLY_CONSOLE:-}" ] || echo "export DAYFLY_CONSOLE=$$DAYFLY_CONSOLE"'

generate: ## rewrite the generated files (figures, C header, OpenAPI, licences)
	@scripts/generate

test-rust: ## the Rust tests alone
	@scripts/test rust

test-python: ## the black-box tests alone: real processes, driven from Python
	@scripts/test python

loom: ## model-check the lock-free code (LOOM_MAX_PREEMPTIONS=3)
	@scripts/test loom

soak: ## the long tests
	@scripts/test soak

miri: ## unsafe code under Miri (needs a nightly toolchain)
	@scripts/test miri

sanitize: ## unsafe code under the address sanitizer (needs a nightly toolchain)
	@scripts/test sanitize

valgrind: ## unsafe code under valgrind
	@scripts/test valgrind

clean: ## remove what was built, here and in the cache
	@bash -c '. scripts/environment.sh; rm -rf build bindings/python/python/dayfly/{bin,native} "$$DAYFLY_CACHE"/venv-* "$$(dirname "$$CONSOLE_DIST")" "$$CARGO_TARGET_DIR"'
