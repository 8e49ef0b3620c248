# The front door. Everything real is in CMakeLists.txt; this only gives the usual words. Builds print one line (V=1: all).
BUILD ?= build
JOBS  ?= $(shell nproc 2>/dev/null || echo 2)
CTEST  = -j$(JOBS)
MAKE_IN = sh tools/build.sh $(BUILD) $(JOBS)
RUN_TESTS = sh tools/run_tests.sh
MAKEFLAGS += --no-print-directory

.PHONY: all demo test cross hf test-cuda-builds test-model asan tsan coverage mutants fuzz deps-cudnn deps-julia julia test-gpu bench-gpu bench gallery chroot-test install lint clean help
all: $(BUILD)/Makefile
	@$(MAKE_IN) fxattn fxattn_shared fxattn_static fxattn_completions

$(BUILD)/Makefile:
	@cmake -S . -B $(BUILD) $(CMAKE_FLAGS) >/dev/null

demo: $(BUILD)/Makefile ## a soft-capped, causal, windowed program: explained, run forward and backward, checked, drawn
	@$(MAKE_IN) fxattn
	@sh examples/demo.sh $(BUILD)/fxattn $(BUILD)/demo

test: $(BUILD)/Makefile ## build and run every test
	@$(MAKE_IN)
	@$(RUN_TESTS) $(BUILD) $(CTEST)

asan:                ## every test under AddressSanitizer and UBSan
	@cmake -S . -B $(BUILD)-asan -DFXA_SANITIZE=address,undefined >/dev/null
	@sh tools/build.sh $(BUILD)-asan $(JOBS)
	@FXA_TEST_SCALE=0.3 $(RUN_TESTS) $(BUILD)-asan $(CTEST)

tsan:                ## the tests of what has threads under ThreadSanitizer (which: tests/CMakeLists.txt)
	@cmake -S . -B $(BUILD)-tsan -DFXA_SANITIZE=thread >/dev/null
	@sh tools/build.sh $(BUILD)-tsan $(JOBS)
	@FXA_TEST_SCALE=0.05 $(RUN_TESTS) $(BUILD)-tsan $(CTEST)

cross:               ## the C tests for other processors, with cross compilers and qemu-user: CROSS="s390x i386" of them (tools/cross.py)
	@python3 tools/cross.py $(BUILD) $(CROSS) || [ $$? = 77 ]

# Random tests that reach more at their full size; twenty minutes in all beside other work on two cores, which most of
# the tests of src/program spend, since the library is not optimised here.
COVER_WHOLE = ^test_(cpu_mask|cpu_storage|cpu_tape|range_far)$$
coverage:            ## lines and branches that the tests reach, by folder, into docs/generated/reliability.md (gcovr; 20 minutes)
	@command -v gcovr >/dev/null || { echo "skipped: gcovr was not found"; exit 1; }
	@cmake -S . -B $(BUILD)-coverage -DFXA_COVERAGE=ON >/dev/null
	@sh tools/build.sh $(BUILD)-coverage $(JOBS)
	@find $(BUILD)-coverage -name '*.gcda' -delete
	@{ FXA_TEST_SCALE=0.3 $(RUN_TESTS) $(BUILD)-coverage $(CTEST) --timeout 7200; tests=$$?; \
	$(RUN_TESTS) $(BUILD)-coverage $(CTEST) --timeout 7200 -R '$(COVER_WHOLE)' || tests=1; \
	python3 tools/reliability.py --coverage $(BUILD)-coverage && exit $$tests; }

mutants:             ## random changes of src against the C tests that reach them: N=100, SEED=1, ONLY=cuda,plan
	@python3 tools/mutants.py --work $(BUILD)-mutants --count $(or $(N),100) --seed $(or $(SEED),1) $(if $(ONLY),--only $(ONLY))

fuzz:                ## libFuzzer on texts, builder tapes, plan bytes, carried problems and .npy files, SECONDS=60 each (needs clang)
	@sh tools/fuzz.sh $(BUILD)-fuzz $(or $(SECONDS),60)

# Fetched once for each of these versions, which the last line of the recipe writes down.
CUDNN_PACKAGES = nvidia-cudnn-cu13==9.19.1.2 nvidia-cuda-nvrtc==13.4.92
CUDNN_DEPS     = $(BUILD)/deps/cudnn
deps-cudnn:          ## cuDNN and NVRTC for tests that give them graphs without a GPU, from PyPI into the build folder (420 MB)
	@test "$$(cat $(CUDNN_DEPS)/fetched 2>/dev/null)" = "$(CUDNN_PACKAGES)" || { rm -rf $(CUDNN_DEPS) && \
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --retries 1 --timeout 30 --target $(CUDNN_DEPS) \
	$(CUDNN_PACKAGES) && python3 tools/stub_driver.py $(CUDNN_DEPS)/stub $(CUDNN_DEPS)/nvidia/cudnn/lib && \
	echo "$(CUDNN_PACKAGES)" > $(CUDNN_DEPS)/fetched; }

deps-julia:          ## Julia 1.5.3 for the tests of julia/FXAttn, from Debian's packages into the build folder (70 MB)
	@python3 tools/fetch_julia.py $(BUILD)/deps/julia

test-cuda-builds: $(BUILD)/Makefile ## plans of the cuda engine by NVRTC, no GPU: MATRIX=200 of them (full: all 2,052, two hours of CPU)
	@$(MAKE_IN) test_cuda_builds
	@FXA_CUDA_MATRIX=$(or $(MATRIX),200) $(BUILD)/tests/test_cuda_builds

julia: $(BUILD)/Makefile ## the Julia package, assembled in build/julia (docs/julia.md)
	@$(MAKE_IN) julia

test-model: $(BUILD)/Makefile ## the kernels of the cuda engine on a model of a GPU, against the reference: SECONDS=600 of it (tests/model)
	@$(MAKE_IN) test_cuda_device standin_cuda model_nvrtc
	@python3 tests/device/python/run_cuda.py $(BUILD) --model --seconds $(or $(SECONDS),600) $(GPU_FLAGS)

HF_PYTHON = $(BUILD)/python-tests/bin/python
hf: $(BUILD)/Makefile ## every architecture of transformers beside eager attention, into docs/transformers.md (an hour; HF_FLAGS=--resume)
	@$(MAKE_IN) python
	@test -x $(HF_PYTHON) || { echo "skipped: $(HF_PYTHON) was not found; make test FXA_TEST_PYTHON=all makes it"; exit 1; }
	@PYTHONPATH=$(BUILD)/python nice $(HF_PYTHON) tests/python/pytorch/hf_walk.py tests/python/pytorch/hf_outcomes.json $(HF_FLAGS)
	@python3 tools/hf_table.py

# Where there is no GPU both say so by name, and that is no failure.
test-gpu: $(BUILD)/Makefile ## the cudnn and cuda engines on a GPU against the reference, then PyTorch and JAX with it (docs/gpu.md)
	@$(MAKE_IN) test_cudnn_lowering test_cudnn_functions test_cudnn_bprop test_cudnn_bias test_cudnn_common_factors \
	test_gpu_kernels test_cudnn_device test_cudnn_programs test_cudnn_fp8 test_cudnn_fp8_backward test_cuda_device \
	test_cuda_plans test_cuda_features test_cuda_grads test_cuda_adverse test_cuda_odd test_cuda_tables test_cuda_caps \
	test_cuda_decode test_cuda_stress test_model test_model_copies test_model_functions test_model_products python
	@python3 tests/device/python/run_cudnn.py $(BUILD) $(GPU_FLAGS) || [ $$? = 77 ]
	@python3 tests/device/python/run_cuda.py $(BUILD) $(GPU_FLAGS) || [ $$? = 77 ]
	@for file in torch_cuda jax_cuda; do PYTHONPATH=$(BUILD)/python python3 tests/device/python/$$file.py || [ $$? = 77 ] || exit 1; done

bench-gpu: $(BUILD)/Makefile ## the engines of a GPU beside PyTorch's cuDNN attention and FlexAttention (needs torch)
	@$(MAKE_IN) python
	@PYTHONPATH=$(BUILD)/python python3 bench/bench_gpu.py --flex $(GPU_FLAGS) || [ $$? = 77 ]

bench: $(BUILD)/Makefile ## the benchmarks of bench/
	@$(MAKE_IN)
	@sh tools/bench.sh $(BUILD)

gallery: $(BUILD)/Makefile ## a page with a picture of every program of examples/programs; also docs/img/mask.svg
	@$(MAKE_IN) fxattn
	@python3 tools/gallery.py $(BUILD)/fxattn $(BUILD)/gallery

chroot-test:         ## make demo and make test on a bare Debian 12 (gcc) and 13 (clang), without network and with it (needs root)
	@failed=0; for machine in "bookworm gcc" "trixie clang"; do \
	sh tools/chroot.sh $$machine $(BUILD)-chroot || [ $$? = 77 ] || failed=1; done; exit $$failed

install: all         ## into PREFIX (default: the system's)
	@cmake --install $(BUILD) $(if $(PREFIX),--prefix $(PREFIX))

lint:                ## house rules, include directions, exported names
	@python3 tools/lint.py

clean:               ## remove what was built
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-coverage $(BUILD)-mutants $(BUILD)-fuzz $(BUILD)-chroot

help:                ## this list
	@echo "make: build the library and the command"
	@sed -n 's/^\([a-z-]*\):.*## /make \1: /p' Makefile
