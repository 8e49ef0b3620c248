# SPDX-License-Identifier: Apache-2.0
"""ring_attention: attention over a sequence that is sharded over the processes of a torch.distributed group.

The file attention.py checks the arguments and makes the call. The file shards.py computes the positions that each
process has. The file processes.py has what the processes agree on before a call, and the transfers. The file passes.py
has the forward and backward pass on one process.

Each process has some rows of Q and some rows of K and V. The parts of K and V are passed around the ring of processes.
Each process attends its rows to each part and merges the result into out and LSE (fxa_merge), so that out and LSE are
those of the entire sequence. A process receives the next part of K and V while it computes with the current part. In
the backward pass the parts of K and V travel around the ring again. The gradients of a part of K and V travel with the
part, and end at the process that owns the part. The backward pass uses the LSE of the entire sequence, so that each
part yields its share of every gradient.

The score program gets positions in the entire sequence through coordinate maps of the C library, so any score_mod, any
mask_mod and dropout work. A process skips parts of K and V in which none of the process's rows attends to a key.
Results that a process merges are f32 (f64 for f64 inputs) and are rounded once.
"""
from .attention import ring_attention
from .shards import split_sequence

__all__ = ["ring_attention", "split_sequence"]
