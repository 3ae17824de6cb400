# Commands for a clone of this repository, described in README.md and docs/development/index.md.
#   make test TESTFLAGS="-k compose"     PYTHON=python3.13 make test VENV=.venv-313
PYTHON ?= python3
VENV ?= .venv
TESTFLAGS ?=
# Folders and files below tests/ that `make test` runs: TESTS="core xpcs/files/test_aps.py".
TESTS ?= .
# Native parts without which the tests fail; JAXKERN_REQUIRE=cpu,jpeg includes the JPEG decoder.
JAXKERN_REQUIRE ?= cpu
TRAINFLAGS ?=
BENCHFLAGS ?=
GPUFLAGS ?=
BIN := $(CURDIR)/$(VENV)/bin
WHEELS := build/wheels-$(notdir $(VENV))
# Includes folders, whose modification time changes when a file is added or removed.
SOURCES := $(shell find csrc jaxkern -name __pycache__ -prune -o -print) CMakeLists.txt pyproject.toml
# Tests run outside the source tree, so that they import the installed wheel.
PYTEST := PYTHONSAFEPATH=1 $(BIN)/python -m pytest -c $(CURDIR)/pyproject.toml \
	--rootdir $(CURDIR)/tests -p no:cacheprovider
CPP := $$(git ls-files '*.h' '*.cc' '*.cu')

.PHONY: demo figures-images figures-xpcs train train-tokens test test-slow test-all test-huggingface test-torchvision xpcs-peers \
	xpcs-peers-environment train-check bench bench-all bench-ops bench-streaming bench-native bench-peers bench-correlators bench-freethreaded profile freethreaded gpu-check gpu-wheel arm-check lint docs clean install wheels

demo: EXTRA = demo
demo: install
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/demo_xpcs.py

# The figure of all transforms.
figures-images: EXTRA = demo
figures-images: install
	$(BIN)/python examples/augmentations.py

# The figures of the XPCS pages, with a reduced palette. Full runs of the benchmarks draw the others.
figures-xpcs: EXTRA = demo
figures-xpcs: install
	$(BIN)/python examples/xpcs_g2.py --plot docs/images/xpcs-g2.png
	$(BIN)/python examples/demo_xpcs.py
	for shown in cuts:3 maps:1; do $(BIN)/python -P -m jaxkern xpcs plot --quiet \
		--config demo-output/xpcs/config.yaml --output-dir demo-output/xpcs --set output.dpi=70 \
		--set output.angles=$${shown#*:} && $(BIN)/python -c "import sys, PIL.Image as i; \
		i.open(sys.argv[1]).convert('RGB').quantize(192, dither=0).save(sys.argv[2], optimize=True)" \
		demo-output/xpcs/$${shown%:*}.png docs/images/xpcs-$${shown%:*}.png || exit; done
	$(BIN)/python -m pip install -q "$$(echo $(WHEELS)/*.whl)[mcmc]"
	$(BIN)/python examples/xpcs_plots.py --folder docs/images

# Resumes from the last checkpoint in demo-output/train-digits.
train: EXTRA = train
train: install
	$(BIN)/python examples/train_digits.py --plot demo-output/train-digits.png $(TRAINFLAGS)

# Resumes from the last checkpoint in demo-output/train-tokens.
train-tokens: EXTRA = train
train-tokens: install
	$(BIN)/python examples/train_tokens.py $(TRAINFLAGS)

# The tests of a file run in one process, where they share compiled programs.
test: EXTRA = test
test: install
	mkdir -p build/outside
	cd build/outside && JAXKERN_REQUIRE=$(JAXKERN_REQUIRE) \
		$(PYTEST) -n 2 --dist loadfile $(addprefix $(CURDIR)/tests/,$(TESTS)) $(TESTFLAGS)

# Tests marked `slow`, many of which are in one file; and all tests.
test-slow:
	$(MAKE) test TESTFLAGS="-m slow --dist load $(TESTFLAGS)"

test-all:
	$(MAKE) test TESTFLAGS="-m 'not benchmark' $(TESTFLAGS)"

# Comparison with torchvision, which is installed without its dependencies: any build of torch works.
test-torchvision: .venv-torchvision/bin/python
	.venv-torchvision/bin/python -m pip install -q torch==2.13.0
	.venv-torchvision/bin/python -m pip install -q --no-deps torchvision==0.28.0
	$(MAKE) test VENV=.venv-torchvision TESTS=image/torchvision

# Comparison with other XPCS correlators, without the dependencies of their user interfaces. boost-corr and
# pysimplemask require Python 3.12 but run on 3.11. Warnings of these packages are not errors.
xpcs-peers: xpcs-peers-environment
	$(MAKE) test VENV=.venv-xpcs-peers TESTS=xpcs/peers TESTFLAGS="-W default $(TESTFLAGS)"

xpcs-peers-environment: .venv-xpcs-peers/bin/python
	.venv-xpcs-peers/bin/python -m pip install -q -r benchmarks/xpcs_peers.txt
	.venv-xpcs-peers/bin/python -m pip install -q --no-deps --ignore-requires-python \
		boost-corr==0.1.7 pysimplemask==0.4.5 scikit-beam==0.0.27 xpcs-correlator==0.4.5

# Tests of Hugging Face datasets, a library with many dependencies.
test-huggingface: EXTRA = test,huggingface
test-huggingface: install
	mkdir -p build/outside
	cd build/outside && JAXKERN_REQUIRE=cpu $(PYTEST) $(CURDIR)/tests/pipeline/huggingface $(TESTFLAGS)

train-check: EXTRA = test,train
train-check: install
	mkdir -p build/outside
	cd build/outside && JAXKERN_REQUIRE=$(JAXKERN_REQUIRE) $(PYTEST) -n 2 $(CURDIR)/tests/examples $(TESTFLAGS)

bench: EXTRA = bench
bench: install
	for name in image_augment image_policies overheads execution ring_batches file_batches \
		packed_files xpcs_kernels xpcs_fits; do \
		$(BIN)/python benchmarks/$$name.py $(BENCHFLAGS) || exit; done

# All benchmarks that this machine supports, in one report: BENCHFLAGS="--quick --only ops" for some of them.
bench-all: EXTRA = bench,cli
bench-all: install
	$(BIN)/python benchmarks/run.py $(BENCHFLAGS)

# Timings of the ops, which are saved: BENCHFLAGS=--benchmark-compare compares with the last ones.
bench-ops: EXTRA = test
bench-ops: install
	PYTHONSAFEPATH=1 $(BIN)/python -m pytest -p no:cacheprovider -m benchmark \
		--benchmark-autosave $(BENCHFLAGS) tests/benchmarking tests/core/test_ceilings.py

# Writes, fits and deletes a file of 4 GB: BENCHFLAGS="--points 1e8 --quick" for a smaller one.
bench-streaming: EXTRA = bench
bench-streaming: install
	$(BIN)/python benchmarks/xpcs_streaming.py $(BENCHFLAGS)

bench-native: EXTRA = bench
bench-native: install
	cmake -S benchmarks/native -B build/bench
	cmake --build build/bench -j 2
	for kind in image xpcs ring; do \
		$(BIN)/python benchmarks/native.py $$kind build/bench/bench_$$kind || exit; done
	build/bench/bench_pages

# Profile of the demo: a table, a plot and a trace in benchmark-results/.
profile: EXTRA = demo,cli
profile: install
	$(BIN)/python -P -m jaxkern profile --plot benchmark-results/profile-demo.png examples/demo.py

bench-peers: .venv-peers/bin/python
	.venv-peers/bin/python -m pip install -q -r benchmarks/peers.txt
	.venv-peers/bin/python -m pip install -q --no-deps torchvision==0.28.0
	$(MAKE) bench VENV=.venv-peers

# Comparison with the packages of `make xpcs-peers`, some of which take minutes: BENCHFLAGS=--quick.
bench-correlators: xpcs-peers-environment
	$(MAKE) install VENV=.venv-xpcs-peers EXTRA=bench
	.venv-xpcs-peers/bin/python benchmarks/xpcs_correlators.py $(BENCHFLAGS)

# Tests of threads without the GIL; builds a free-threaded Python from Debian's source package if there is none.
freethreaded:
	JAXKERN_FREETHREADED=all .ci/run freethreaded

bench-freethreaded:
	.venv-freethreaded/bin/python benchmarks/free_threads.py $(BENCHFLAGS)

# On a machine with a GPU: GPUFLAGS="--wheel build/gpu-wheel/*.whl" installs a wheel instead of building.
gpu-check:
	benchmarks/gpu-check $(GPUFLAGS)

# A wheel for `gpu-check`: CUDA_ARCHITECTURES=90-real builds for an H100 or H200 only.
gpu-wheel: $(VENV)/bin/python
	$(BIN)/python -m pip wheel -q --no-deps -w build/gpu-wheel -Ccmake.define.JAXKERN_CUDA=ON \
		$(if $(CUDA_ARCHITECTURES),-Ccmake.define.CMAKE_CUDA_ARCHITECTURES="$(CUDA_ARCHITECTURES)") .

# The wheel for aarch64 under emulation. Debian's arm64 Python is 3.11, so the wheel is for 3.11.
arm-check:
	SKBUILD_CMAKE_DEFINE="JAXKERN_WERROR=ON;JAXKERN_JPEG=ON;JAXKERN_CUDA=OFF" $(MAKE) install VENV=.venv-arm PYTHON=python3.11 EXTRA=xpcs
	.ci/arm-check $(CURDIR)/.venv-arm/bin/python

lint: $(VENV)/bin/python
	$(BIN)/python -m pip install -q -r .ci/lint.txt
	.ci/dialect
	$(BIN)/codespell docs examples jaxkern *.md
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

# Builds the pages with warnings as errors and runs the examples of docstrings. Tests run the code in pages.
docs: EXTRA = docs,test
docs: install
	$(BIN)/python -P -m sphinx -W --keep-going -q -b html docs build/docs
	mkdir -p build/outside
	cd build/outside && XLA_FLAGS=--xla_force_host_platform_device_count=4 \
		$(PYTEST) --doctest-modules --pyargs jaxkern $(TESTFLAGS)

# The wheels and the sdist of a release, built by zig: WHEELFLAGS="x86_64".
wheels:
	PYTHON=$(PYTHON) .ci/wheels $(WHEELFLAGS)

clean:
	rm -rf build dist wheelhouse .venv .venv-* demo-output

# Builds a wheel and installs it with the extra that a command needs.
install: $(WHEELS)/installed
	$(BIN)/python -m pip install -q "$$(echo $(WHEELS)/*.whl)$(if $(EXTRA),[$(EXTRA)])"

$(WHEELS)/installed: $(VENV)/bin/python $(SOURCES)
	rm -rf $(WHEELS)
	$(BIN)/python -m pip wheel -q --no-deps -w $(WHEELS) .
	$(BIN)/python -m pip uninstall -q -y jaxkern 2>&1 | grep -v 'not installed' || true  # its old name
	$(BIN)/python -m pip install -q --no-deps --force-reinstall $(WHEELS)/*.whl
	touch $@

%/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
		f"expected Python 3.11 or newer, got {v[0]}.{v[1]}: set PYTHON=python3.11")'
	$(PYTHON) -m venv $*
