# Two commands for a newcomer: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := . conf/java.sh && PYSPARK_PYTHON=$(CURDIR)/$(BIN)/python

# The real data sets, where they are: tests that need one are skipped where it is absent.
export ONEBIT_DATA ?= $(firstword $(wildcard $(CURDIR)/data $(CURDIR)/../shared/data) data)

# Without compiled files of modules every process would compile numba, numpy and pyspark anew: 2 to 5 s each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup java demo test test-all kernels suite suite-all test-newest test-connect test-cluster test-gpu lint style types docs bench reproduce dist clean

# The demo needs less than the tests: its packages are installed first, and those of the tests on top of them. Both steps
# run again only when pyproject.toml changed. Python compiles a module when it is first imported, not all of them here.
UNCOMPRESSED := DIST_EXTRA_CONFIG=$(CURDIR)/conf/install.cfg
PIP_INSTALL := $(UNCOMPRESSED) $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check

$(VENV)/.demo: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("onebit_spark needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.11 ...") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable '.[all]'
	@touch $@

$(VENV)/.installed: $(VENV)/.demo
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

java:
	@sh conf/java.sh

setup: $(VENV)/.installed java

demo: $(VENV)/.demo java
	@$(RUN) $(BIN)/python -m onebit_spark.demo --output demo-output

lint: style types

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# The documentation site, in site/: a warning is an error. The variable keeps the theme's announcement away.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --config-file conf/mkdocs.yml

# Three processes for two cores: a Spark test spends a part of its time waiting. The files that start Spark share two of
# the processes, each with one Spark session (tests/conftest.py). They come first; the short files of unit/ fill what is
# left. A second thread of OpenBLAS would wait in a loop on the core of another process: 8% of the time of small fits, as
# measured.
PROCESSES ?= 3
IN_PROCESSES := -n $(PROCESSES) --dist loadfile --no-loadscope-reorder --durations=20
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest $(IN_PROCESSES)

# About eight minutes on two cores, after the kernels are compiled. The slow tests, types and documentation are checked
# by `make test-all`, and in jobs of their own in CI.
test: style suite

test-all: lint docs suite-all test-connect

# On a machine that has not run the suite yet, its processes would compile the kernels. Here each is compiled once, on both
# cores.
kernels: setup
	@$(BIN)/python tests/support/kernels.py

suite: kernels
	$(RUN) $(PYTEST)

suite-all: kernels
	$(RUN) $(PYTEST) -m "" --hypothesis-profile thorough

# The tests that start Spark, with another version of it in an environment of its own: make test-spark40, test-spark41 …
test-spark%:
	$(PYTHON) -m venv .venv-spark$*
	$(UNCOMPRESSED) .venv-spark$*/bin/python -m pip install --quiet --editable '.[test]' 'pyspark==$(shell echo $* | sed 's/./&./').*'
	. conf/java.sh && PYSPARK_PYTHON=$(CURDIR)/.venv-spark$*/bin/python .venv-spark$*/bin/python -m pytest \
		$(IN_PROCESSES) tests/spark tests/jobs

# The newest releases, whatever pyproject.toml caps: if this passes, the caps can go. What pip prints about conflicts names them.
test-newest:
	$(PYTHON) -m venv .venv-newest
	$(UNCOMPRESSED) .venv-newest/bin/python -m pip install --quiet --editable '.[test]'
	$(UNCOMPRESSED) .venv-newest/bin/python -m pip install --quiet --upgrade numba numpy pandas pyarrow pyspark
	. conf/java.sh && PYSPARK_PYTHON=$(CURDIR)/.venv-newest/bin/python .venv-newest/bin/python -m pytest \
		$(IN_PROCESSES) tests/unit tests/spark

# The tests that start Spark, on a session of Spark Connect: one process, because its server has one port.
test-connect: setup
	$(RUN) ONEBIT_TEST_SESSION=connect $(BIN)/python -m pytest --durations=20 tests/spark

# Faults on a standalone cluster: executors, workers and the driver are killed while a fit runs.
test-cluster: setup
	$(RUN) $(BIN)/python -m pytest tests/cluster -m "cluster or not cluster"

# A GPU machine may have no network: this takes the Python that is there. It needs CuPy, pytest and the dependencies.
test-gpu:
	PYTHONPATH=$(CURDIR) $(PYTHON) -m pytest tests/gpu --confcutdir tests/gpu --durations=10

bench: setup
	$(RUN) $(BIN)/python benchmarks/kernels.py --tables rank rows large sparse scaling
	$(RUN) $(BIN)/python benchmarks/iteration.py --rank 10 32
	$(RUN) $(BIN)/python benchmarks/accuracy.py simulated
	$(RUN) $(BIN)/python benchmarks/accuracy.py real
	$(RUN) $(BIN)/python benchmarks/als.py
	$(RUN) $(BIN)/python benchmarks/peers.py
	$(RUN) $(BIN)/python benchmarks/certificate.py
	$(RUN) $(BIN)/python benchmarks/selective.py
	$(RUN) $(BIN)/python benchmarks/precision.py
	$(RUN) $(BIN)/python benchmarks/serving.py foldin
	$(RUN) $(BIN)/python benchmarks/serving.py recommend
	$(RUN) $(BIN)/python benchmarks/serving.py calibration
	$(RUN) $(BIN)/python benchmarks/serving.py load
	$(RUN) $(BIN)/python benchmarks/exchange.py
	$(RUN) $(BIN)/python benchmarks/scale.py

# The paper's experiments, about half an hour on two cores. MOVIELENS=--movielens=PATH reads u.data instead of fetching it;
# a run that was interrupted continues where it was.
MOVIELENS ?= --download
REPRODUCTION ?= reproduction
reproduce: setup
	$(RUN) $(BIN)/python jobs/reproduce.py tables --replicates 20 --output $(REPRODUCTION)
	$(RUN) $(BIN)/python jobs/reproduce.py noise --output $(REPRODUCTION)
	$(RUN) $(BIN)/python jobs/reproduce.py movielens $(MOVIELENS) --output $(REPRODUCTION)
	@mkdir -p docs
	cp $(REPRODUCTION)/REPRODUCTION.md $(REPRODUCTION)/noise.png docs/

# An sdist, and a wheel made from it; the wheel again as a zip for --py-files, because executors do not import a .whl. Each is
# checked, and installed into an empty environment of every Python of DIST_PYTHONS that is here, for README's example.
DIST_PYTHONS ?= python3.11 python3.12 python3.13 python3.14
DIST := .venv-dist/bin/python
dist:
	@rm -rf dist
	$(PYTHON) -m venv .venv-dist
	$(DIST) -m pip install --quiet build twine 'readme_renderer[md]'
	$(DIST) -m build --outdir dist . >/dev/null
	$(DIST) -m twine check --strict dist/*
	$(DIST) tests/support/dist.py $(DIST_PYTHONS)
	cp dist/onebit_spark-*.whl dist/onebit_spark.zip

clean:
	rm -rf $(VENV) .venv-* build dist site demo-output *.egg-info .mypy_cache .ruff_cache .pytest_cache
