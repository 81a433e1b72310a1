# The everyday commands; each is a short script in scripts/. Nothing has to be installed before.
#
# Cargo builds into $CARGO_TARGET_DIR, else into ../target if that exists, else into ./target.

.PHONY: help demo test test-rdma miri bench lint format deny docs data clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: ## installs what is missing, builds, runs the flights of New York 2013 and draws them
	@scripts/install-deps.sh
	@scripts/demo.sh

test: ## installs what is missing, builds and runs every test
	@scripts/install-deps.sh
	@scripts/test.sh

test-rdma: ## runs the tests of RDMA verbs on Soft-RoCE in a guest (needs QEMU, installs it)
	@scripts/install-deps.sh
	@scripts/test-rdma.sh

miri: ## runs tests of unsafe code under Miri (needs a nightly toolchain)
	@scripts/miri.sh

bench: ## measures every workload (WORKLOADS="ysb ro" for some)
	@scripts/install-deps.sh
	@scripts/bench.sh $(WORKLOADS)

lint: ## format, clippy, documentation; each warning is an error
	@scripts/install-deps.sh
	@scripts/lint.sh

format: ## rustfmt, and comments wrapped at 100 columns
	cargo fmt --all
	@git ls-files '*.rs' | xargs scripts/wrap-comments.py

deny: ## licences, bans, sources and advisories of all dependencies
	cargo deny --all-features check

docs: ## the API documentation, and the book of docs/ where mdbook is installed
	@scripts/docs.sh

data: ## makes examples/data and examples/expected anew
	scripts/prepare-flights.py
	scripts/expected-flights.py

clean: ## removes what the demonstration left
	rm -rf target/demo target/venv-flights
