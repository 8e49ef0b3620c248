# SPDX-License-Identifier: Apache-2.0
"""The ways on which a call of attention reaches the library."""
