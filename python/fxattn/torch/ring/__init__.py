# SPDX-License-Identifier: Apache-2.0
"""Attention over sequences that are sharded over the processes of a group."""
from .ring import ring_attention
from .shards import split_sequence

__all__ = ["ring_attention", "split_sequence"]
