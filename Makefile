# The everyday commands; each is a short script in scripts/. Nothing has to be installed before.
#
# Cargo builds into $CARGO_TARGET_DIR, else into ../target if that exists, else into ./target.

.PHONY: help demo test cases test-python wheel test-rdma test-hosts test-mpi test-slurm test-world test-arm miri bench bench-loops instructions bench-peers bench-tpcds bench-recovery bench-kafka bench-python lint format deny docs data clean

help: ## lists the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## installs what is missing, builds, runs the flights of New York 2013 and draws them
	@scripts/install-deps.sh
	@scripts/demo.sh

test: ## installs what is missing, builds and runs every test
	@scripts/install-deps.sh
	@scripts/test.sh

cases: ## tries random streams and queries (CASES=5000 of each suite, or SEED=17; TEST=name for one suite)
	@scripts/install-deps.sh
	@scripts/cases.sh

test-rdma: ## runs the tests of RDMA verbs on Soft-RoCE in a guest (needs QEMU, installs it)
	@scripts/install-deps.sh
	@scripts/test-rdma.sh

test-hosts: ## jobs on two hosts, which are two network namespaces of this machine
	@scripts/install-deps.sh
	@scripts/test-hosts.sh

test-mpi: ## jobs started by mpirun of Open MPI and of MPICH (installs them)
	@scripts/install-deps.sh
	@scripts/test-mpi.sh

test-slurm: ## jobs started by srun on a SLURM of this machine (installs it; needs root)
	@scripts/install-deps.sh
	@scripts/test-slurm.sh

test-world: ## a real Kafka broker (from Maven Central), Postgres, and S3 from PyPI (NAME=text for some tests)
	@scripts/install-deps.sh
	@scripts/test-world.sh $(NAME)

test-arm: ## the lower layers on 64-bit ARM, under QEMU on other machines (installs it and a compiler)
	@scripts/install-deps.sh
	@scripts/test-arm.sh $(NAME)

wheel: ## builds the wheel of the Python package
	@scripts/install-deps.sh
	@scripts/wheel.sh 2.28

test-python: ## tests the Python package (installs pinned libraries into an environment of its own)
	@scripts/install-deps.sh
	@scripts/test-python.sh

miri: ## runs tests of unsafe code under Miri (needs a nightly toolchain)
	@scripts/miri.sh

bench: ## measures every workload (WORKLOADS="ysb ro" for some)
	@scripts/install-deps.sh
	@scripts/bench.sh $(WORKLOADS)

bench-loops: ## times the innermost loops, each by itself (LOOP=switch for one)
	@scripts/install-deps.sh
	@scripts/bench-loops.sh $(LOOP)

instructions: ## counts instructions of the innermost loops, held to scripts/instructions.txt (needs valgrind)
	@scripts/instructions.sh

bench-peers: ## measures other engines over the same rows in turns with Millstream (installs them)
	@scripts/install-deps.sh
	@scripts/bench-peers.sh

bench-tpcds: ## runs TPC-DS and compares its results with DuckDB's (ARGS="--scale 1"; installs DuckDB)
	@scripts/install-deps.sh
	@scripts/bench-tpcds.sh $(ARGS)

bench-recovery: ## measures checkpoints and failures against their targets (ARGS="--only cost --scale 0.1")
	@scripts/install-deps.sh
	@scripts/bench-recovery.sh $(ARGS)

bench-kafka: ## measures topics of Kafka through windows into topics, beside Flink (ROWS=1000000; fetches both)
	@scripts/install-deps.sh
	@scripts/bench-kafka.sh $(ROWS)

bench-python: ## measures the Python package against its targets, beside DuckDB (ARGS="--rows 1000000 --gigabytes 1")
	@scripts/install-deps.sh
	@scripts/bench-python.sh $(ARGS)

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
