# SPDX-License-Identifier: Apache-2.0
"""Four devices on one machine for all tests of fxattn.jax, and quick compilation rather than quick code: said before
JAX is imported."""
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join((
    "--xla_force_host_platform_device_count=4", "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true"))
